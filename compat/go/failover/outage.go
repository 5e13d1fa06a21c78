package main

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"gantry/compat/wire"
)

const (
	// Longer than the clients' poll, so that each of them asks for routes and finds no name server.
	outageTime = 40 * time.Second
	// The time in which every node registers with every name server.
	registrationInterval = 30 * time.Second
	// A side that did nothing for longer did not keep working. A call to a leader that was just killed takes up to the
	// client's timeout of 3 s, and a consumer waits 3 s more before it pulls again.
	silenceMax = 10 * time.Second
)

// outage is a time without a name server, and what clients did in it.
type outage struct {
	Away     float64            `json:"away_s"`
	Silences map[string]float64 `json:"longest_silence_s"`
	Routes   float64            `json:"routes_right_after_s"`
	Faulty   []string           `json:"faulty,omitempty"`
}

func (o *outage) String() string {
	silent := ""
	for _, side := range sides {
		if silence, is := o.Silences[side]; is {
			silent += fmt.Sprintf(", %s silent for at most %.1f s", side, silence)
		}
	}
	return fmt.Sprintf("no name server for %.0f s%s; every route right %.1f s after their return", o.Away, silent, o.Routes)
}

// endure kills every name server and lets clients go on with the routes that they have. Meanwhile a group loses its
// leader twice: once with the node back before the name servers, once with it still dead, so that a route as it was
// before the outage is a wrong one.
func endure(o options, c cluster, number int, namesrvs []string, topic string, l *ledger) (*fault, *outage, error) {
	v, err := c.awaitHealthy(recoveryLimit)
	if err != nil {
		return nil, nil, fmt.Errorf("before outage %d: %w", number+1, err)
	}
	time.Sleep(o.settle)
	group := v.Groups[number%len(v.Groups)].Name
	servers := v.nameServers()
	f := &fault{Kind: "outage", Group: group, Started: time.Now()}
	for _, server := range servers {
		if _, err := c.act("kill", server); err != nil {
			return nil, nil, err
		}
	}
	f.Done = time.Now()

	time.Sleep(outageTime / 4)
	if f.Node, err = c.act("kill", "--leader", group); err != nil {
		return nil, nil, err
	}
	time.Sleep(o.down)
	back := time.Now()
	if _, err := c.act("start", f.Node); err != nil {
		return nil, nil, err
	}
	if err := c.awaitCaughtUp(f.Node, recoveryLimit); err != nil {
		return nil, nil, fmt.Errorf("while no name server lived, after the kill of %s: %w", f.Node, err)
	}
	f.CaughtUp = millis(time.Since(back))
	time.Sleep(time.Until(f.Done.Add(outageTime)))
	found := &outage{Silences: l.silences(f.Done, time.Now())}
	dead, err := c.act("kill", "--leader", group)
	if err != nil {
		return nil, nil, err
	}

	for _, server := range servers {
		if _, err := c.act("start", server); err != nil {
			return nil, nil, err
		}
	}
	started := time.Now()
	found.Away = started.Sub(f.Done).Seconds()
	wrong := c.awaitRoutes(namesrvs, topic, started.Add(registrationInterval))
	found.Routes = time.Since(started).Seconds()
	if wrong != nil {
		found.Faulty = append(found.Faulty, fmt.Sprintf("the routes are wrong %v after the name servers came back: %v", registrationInterval, wrong))
	}
	for side, silence := range found.Silences {
		if silence > silenceMax.Seconds() {
			found.Faulty = append(found.Faulty, fmt.Sprintf("the %s did nothing for %.1f s while no name server lived", side, silence))
		}
	}
	if _, err := c.act("start", dead); err != nil {
		return nil, nil, err
	}
	if _, err := c.awaitHealthy(recoveryLimit); err != nil {
		return nil, nil, fmt.Errorf("after the outage: %w; before that: %q", err, found.Faulty)
	}
	f.Over = time.Now()
	return f, found, nil
}

// awaitRoutes waits until every name server's route of a topic is right, and says what is wrong at the deadline.
func (c cluster) awaitRoutes(namesrvs []string, topic string, deadline time.Time) error {
	for {
		v, wrong := c.status()
		if wrong == nil {
			wrong = v.wrongRoute(namesrvs, topic)
		}
		if wrong == nil || time.Now().After(deadline) {
			return wrong
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// wrongRoute compares what each name server says with what the nodes say: each group with all its queues, its leader as
// id 0, and an address for each node that runs and for no other.
func (v view) wrongRoute(namesrvs []string, topic string) error {
	nodes := 0
	for _, p := range v.Processes {
		if p.Kind == "broker" && p.State == "ready" {
			nodes++
		}
	}
	for _, namesrv := range namesrvs {
		route, err := wire.RouteOf(namesrv, topic)
		if err != nil {
			return fmt.Errorf("%s: %w", namesrv, err)
		}
		addresses, writes := map[string]map[string]string{}, map[string]int{}
		for _, b := range route.Brokers {
			addresses[b.Name] = b.Addresses
		}
		for _, q := range route.Queues {
			writes[q.Broker] += q.Writes
		}
		for _, g := range v.Groups {
			switch listed := addresses[g.Name]; {
			case g.Leader == "":
				return fmt.Errorf("%s has no leader", g.Name)
			case listed["0"] != g.LeaderAddress:
				return fmt.Errorf("%s names %q as the leader of %s, which is %s", namesrv, listed["0"], g.Name, g.LeaderAddress)
			case len(listed) != nodes:
				return fmt.Errorf("%s lists %d replicas of %s: %v, but %d nodes are ready", namesrv, len(listed), g.Name, listed, nodes)
			case writes[g.Name] != queues:
				return fmt.Errorf("%s lists %d queues of %s, not %d", namesrv, writes[g.Name], g.Name, queues)
			}
		}
		if len(addresses) != len(v.Groups) {
			return fmt.Errorf("%s lists %d groups, not %d", namesrv, len(addresses), len(v.Groups))
		}
	}
	return nil
}

func (v view) nameServers() []string {
	var names []string
	for _, p := range v.Processes {
		if p.Kind == "namesrv" {
			names = append(names, p.Name)
		}
	}
	return names
}

// The sides that a run may have, as reports name them.
var sides = []string{"Java producer", "Go producer", "consumer"}

// silences gives each side's longest time, within a span, without an acknowledged or a received message.
func (l *ledger) silences(from, to time.Time) map[string]float64 {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	times := map[string][]time.Time{"consumer": nil}
	for _, a := range l.acks {
		side := "Go producer"
		if strings.HasPrefix(a.stream, "java") {
			side = "Java producer"
		}
		times[side] = append(times[side], a.started.Add(a.took))
	}
	for _, r := range l.given {
		times["consumer"] = append(times["consumer"], r.at)
	}
	silences := map[string]float64{}
	for side, all := range times {
		silences[side] = longestSilence(all, from, to).Seconds()
	}
	return silences
}

func longestSilence(times []time.Time, from, to time.Time) time.Duration {
	times = slices.Clone(times)
	slices.SortFunc(times, time.Time.Compare)
	longest, last := time.Duration(0), from
	for _, t := range times {
		if t.After(from) && t.Before(to) {
			longest, last = max(longest, t.Sub(last)), t
		}
	}
	return max(longest, to.Sub(last))
}
