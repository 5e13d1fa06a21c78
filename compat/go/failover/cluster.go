package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"os/exec"
	"strings"
	"time"
)

// cluster is a running `gantry dev`, steered by its own subcommands.
type cluster struct {
	gantry, data string
}

// view is what `gantry dev status --output json` prints, as far as we need it.
type view struct {
	Namesrv   string `json:"namesrv"`
	Processes []struct {
		Name  string   `json:"name"`
		Kind  string   `json:"kind"`
		State string   `json:"state"`
		HTTP  string   `json:"http"`
		Leads []string `json:"leads"`
	} `json:"processes"`
	Groups []struct {
		Name          string `json:"name"`
		Leader        string `json:"leader"`
		LeaderAddress string `json:"leader_addr"`
		Followers     int    `json:"followers"`
	} `json:"groups"`
}

// nodeStatus is a node's `/v1/status`, as far as we need it.
type nodeStatus struct {
	Groups []struct {
		Name      string  `json:"name"`
		Committed *uint64 `json:"committed"`
		Applied   *uint64 `json:"applied"`
	} `json:"groups"`
}

func (c cluster) command(args ...string) (string, error) {
	var out, fault bytes.Buffer
	command := exec.Command(c.gantry, append(append([]string{"dev"}, args...), "--data", c.data)...)
	command.Stdout, command.Stderr = &out, &fault
	if err := command.Run(); err != nil {
		return "", fmt.Errorf("gantry dev %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(fault.String()))
	}
	return strings.TrimSpace(out.String()), nil
}

// act kills, stops, starts, pauses or resumes a process and gives its name, which ends the line that is printed. A group
// may lose its leader for a moment on a busy machine, so "the leader of" is asked for again.
func (c cluster) act(args ...string) (string, error) {
	printed, err := c.command(args...)
	for tries := 0; err != nil && strings.Contains(err.Error(), "has no leader") && tries < 20; tries++ {
		time.Sleep(500 * time.Millisecond)
		printed, err = c.command(args...)
	}
	if err != nil {
		return "", err
	}
	words := strings.Fields(printed)
	if len(words) == 0 {
		return "", fmt.Errorf("gantry dev %s printed nothing", strings.Join(args, " "))
	}
	return words[len(words)-1], nil
}

func (c cluster) status() (view, error) {
	printed, err := c.command("status", "--output", "json")
	if err != nil {
		return view{}, err
	}
	var v view
	if err := json.Unmarshal([]byte(printed), &v); err != nil {
		return view{}, fmt.Errorf("reading the status: %w", err)
	}
	return v, nil
}

// unhealthy says what is missing: every process runs, every group has its leader and all followers, and no node leads
// more groups than its share.
func (v view) unhealthy() string {
	nodes := 0
	share := 0
	for _, p := range v.Processes {
		if p.Kind == "broker" {
			nodes++
		}
	}
	if nodes > 0 {
		share = (len(v.Groups) + nodes - 1) / nodes
	}
	for _, p := range v.Processes {
		if want := map[string]string{"broker": "ready", "namesrv": "running"}[p.Kind]; p.State != want {
			return fmt.Sprintf("%s is %s", p.Name, p.State)
		}
		if len(p.Leads) > share {
			return fmt.Sprintf("%s leads %s", p.Name, strings.Join(p.Leads, ", "))
		}
	}
	for _, g := range v.Groups {
		if g.Leader == "" {
			return g.Name + " has no leader"
		}
		if g.Followers != nodes-1 {
			return fmt.Sprintf("%s has %d followers", g.Name, g.Followers)
		}
	}
	return ""
}

func (c cluster) awaitHealthy(limit time.Duration) (view, error) {
	deadline := time.Now().Add(limit)
	for {
		v, err := c.status()
		missing := ""
		if err == nil {
			if missing = v.unhealthy(); missing == "" {
				return v, nil
			}
		}
		if time.Now().After(deadline) {
			return v, fmt.Errorf("not healthy within %v: %s %v", limit, missing, err)
		}
		time.Sleep(200 * time.Millisecond)
	}
}

// awaitCaughtUp waits until a node has applied, in every group, what the group's leader had committed just before.
func (c cluster) awaitCaughtUp(node string, limit time.Duration) error {
	deadline := time.Now().Add(limit)
	for {
		behind := c.behind(node)
		if behind == "" {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%s has not caught up within %v: %s", node, limit, behind)
		}
		time.Sleep(50 * time.Millisecond)
	}
}

func (c cluster) behind(node string) string {
	v, err := c.status()
	if err != nil {
		return err.Error()
	}
	addresses := map[string]string{}
	for _, p := range v.Processes {
		addresses[p.Name] = p.HTTP
	}
	for _, g := range v.Groups {
		if g.Leader == "" {
			return g.Name + " has no leader"
		}
		committed, err := watermark(addresses[g.Leader], g.Name, false)
		if err != nil {
			return err.Error()
		}
		applied, err := watermark(addresses[node], g.Name, true)
		if err != nil {
			return err.Error()
		}
		if applied < committed {
			return fmt.Sprintf("%s: applied %d, committed %d", g.Name, applied, committed)
		}
	}
	return ""
}

// watermark asks a node for what it applied, or committed, in a group.
func watermark(address, group string, applied bool) (uint64, error) {
	client := http.Client{Timeout: time.Second}
	answer, err := client.Get("http://" + address + "/v1/status")
	if err != nil {
		return 0, err
	}
	defer answer.Body.Close()
	var status nodeStatus
	if err := json.NewDecoder(answer.Body).Decode(&status); err != nil {
		return 0, fmt.Errorf("the status of %s: %w", address, err)
	}
	for _, g := range status.Groups {
		mark := g.Committed
		if applied {
			mark = g.Applied
		}
		if g.Name == group && mark != nil {
			return *mark, nil
		}
	}
	return 0, fmt.Errorf("%s has no figures of %s", address, group)
}
