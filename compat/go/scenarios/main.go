// Command scenarios runs what applications do with rocketmq-client-go, one scenario after the other, and checks what
// they see. It exits with 1 if any fails. With COMPAT_KILLS=SECONDS it runs those for a cluster whose leaders are killed
// for so long, all at once.
package main

import (
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"strings"
	"time"

	"github.com/apache/rocketmq-client-go/v2/rlog"
)

const scenarioLimit = 240 * time.Second

type scenario struct {
	name string
	run  func(*env)
}

func main() {
	if len(os.Args) < 2 {
		fmt.Fprintln(os.Stderr, "usage: scenarios NAMESRV [SCENARIO...]")
		os.Exit(2)
	}
	if path := os.Getenv("CLIENT_LOG"); path != "" {
		if err := rlog.SetOutputPath(path); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(2)
		}
	} else {
		rlog.SetLogLevel("fatal")
	}
	all := append(append(append(append(append(sending, bodies...), pushing...), coming...), exchanges...), pulling...)
	namesrvs := strings.Split(os.Args[1], ";")
	good := true
	if killsTime > 0 {
		good = allPass(chosen(underKills, os.Args[2:]), namesrvs)
	} else {
		for _, s := range chosen(all, os.Args[2:]) {
			good = passes(s, namesrvs) && good
		}
	}
	if !good {
		os.Exit(1)
	}
}

// allPass runs scenarios at the same time.
func allPass(scenarios []scenario, namesrvs []string) bool {
	outcomes := make(chan bool, len(scenarios))
	for _, s := range scenarios {
		go func(s scenario) { outcomes <- passes(s, namesrvs) }(s)
	}
	good := true
	for range scenarios {
		good = <-outcomes && good
	}
	return good
}

func chosen(all []scenario, names []string) []scenario {
	if len(names) == 0 {
		return all
	}
	var found []scenario
	for _, name := range names {
		count := len(found)
		for _, s := range all {
			if s.name == name {
				found = append(found, s)
			}
		}
		if len(found) == count {
			fmt.Fprintf(os.Stderr, "no such scenario: %s\n", name)
			os.Exit(2)
		}
	}
	return found
}

func passes(s scenario, namesrvs []string) bool {
	started := time.Now()
	e := newEnv(namesrvs, s.name)
	outcome := make(chan error, 1)
	go func() {
		defer func() {
			switch fault := recover().(type) {
			case nil:
				outcome <- nil
			case failure:
				outcome <- errors.New(string(fault))
			default:
				debug.PrintStack()
				outcome <- fmt.Errorf("panic: %v", fault)
			}
		}()
		s.run(e)
	}()
	var fault error
	select {
	case fault = <-outcome:
	case <-time.After(scenarioLimit):
		fault = fmt.Errorf("still running after %v", scenarioLimit)
	}
	e.close()
	seconds := time.Since(started).Seconds()
	if fault != nil {
		text := strings.Join(strings.Fields(fault.Error()), " ")
		if len(text) > 300 {
			text = text[:300] + "..."
		}
		fmt.Printf("FAIL %s %s (%.1f s)\n", s.name, text, seconds)
		return false
	}
	note := ""
	if len(e.notes) > 0 {
		note = "; " + strings.Join(e.notes, "; ")
	}
	fmt.Printf("PASS %s (%.1f s%s)\n", s.name, seconds, note)
	return true
}
