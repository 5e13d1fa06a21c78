// Command failover kills, stops and pauses leaders of a running `gantry dev` cluster under the load of unmodified
// clients, takes all name servers away for a while, and checks that nothing acknowledged is lost.
//
// A Java and a Go producer send synchronously to a topic over all groups; a Java push consumer reads it. For each fault
// a probe sends bare frames to all replicas of the group, so that the time in which the group acknowledges nothing is
// seen without any client's timers.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"sort"
	"strings"
	"time"

	"gantry/compat/wire"

	"github.com/apache/rocketmq-client-go/v2/admin"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/rlog"
)

const (
	probeLead     = 1 * time.Second
	recoveryLimit = 60 * time.Second
	drainLimit    = 180 * time.Second
	queues        = 4
)

type options struct {
	gantry, data    string
	clients         string
	oneGroup        bool
	java            string
	kills, crashes  int
	stops, pauses   int
	outages         int
	rate, probeRate int
	settle          time.Duration
	down, pause     time.Duration
	out             string
	enforceGaps     bool
}

func main() {
	var o options
	flag.StringVar(&o.gantry, "gantry", "", "the gantry binary")
	flag.StringVar(&o.data, "data", "", "directory of the running `gantry dev`")
	flag.StringVar(&o.clients, "clients", "", "name servers of the clients, such as a sidecar; none: the cluster's")
	flag.BoolVar(&o.oneGroup, "one-group", false, "keep the topic in one group, which every fault is then about")
	flag.StringVar(&o.java, "java", "", "command that runs the Java side, words apart by blanks; none: Go alone")
	flag.IntVar(&o.kills, "kills", 20, "how many leaders to kill, the groups in turn")
	flag.IntVar(&o.crashes, "crashes", 0, "how many leading processes to kill that come back at once, their ports kept open")
	flag.IntVar(&o.stops, "stops", 3, "how many leaders to stop gracefully")
	flag.IntVar(&o.pauses, "pauses", 10, "how many leaders to pause")
	flag.IntVar(&o.outages, "outages", 1, "how often to kill all name servers, and start them again")
	flag.IntVar(&o.rate, "rate", 500, "messages a second of each producer")
	flag.IntVar(&o.probeRate, "probe-rate", 1000, "frames a second of the probe")
	flag.DurationVar(&o.settle, "settle", 35*time.Second, "quiet time before each fault; clients ask for routes every 30 s")
	flag.DurationVar(&o.down, "down", 2*time.Second, "how long a killed node stays down")
	flag.DurationVar(&o.pause, "pause", 4*time.Second, "how long a paused node stays paused")
	flag.StringVar(&o.out, "out", "", "file for the report as JSON")
	flag.BoolVar(&o.enforceGaps, "enforce-gaps", false, "fail when a gap is longer than its target")
	flag.Parse()
	if o.gantry == "" || o.data == "" || flag.NArg() > 0 {
		flag.Usage()
		os.Exit(2)
	}
	report, err := run(o)
	if err != nil {
		fmt.Fprintln(os.Stderr, "failover:", err)
		os.Exit(2)
	}
	report.print(os.Stdout)
	if o.out != "" {
		text, err := json.MarshalIndent(report, "", "  ")
		if err == nil {
			err = os.WriteFile(o.out, append(text, '\n'), 0o644)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, "failover:", err)
			os.Exit(2)
		}
	}
	if len(report.Faulty) > 0 || o.enforceGaps && !report.GapsWithinTargets {
		os.Exit(1)
	}
}

func run(o options) (*report, error) {
	d, err := watchDisk(o.data)
	if err != nil {
		return nil, err
	}
	l := newLedger()
	rlog.SetLogger(&retryLog{ledger: l})
	c := cluster{gantry: o.gantry, data: o.data}
	v, err := c.awaitHealthy(recoveryLimit)
	if err != nil {
		return nil, err
	}
	namesrvs := strings.Split(v.Namesrv, ";")
	clients := v.Namesrv
	if o.clients != "" {
		clients = o.clients
	}
	run := fmt.Sprintf("%x", time.Now().Unix())
	topic, probeTopic := "failover_"+run, "failover_probe_"+run
	for _, t := range []string{topic, probeTopic} {
		if err := createTopic(namesrvs, t, o.oneGroup); err != nil {
			return nil, err
		}
	}

	goSide, err := startGo(strings.Split(clients, ";"), topic, "failover_go_"+run, o.rate, l)
	if err != nil {
		return nil, err
	}
	defer goSide.close()
	var consumer consumerSide
	if o.java != "" {
		javaSide, err := startJava(strings.Fields(o.java), clients, topic, "failover_java_"+run, o.rate, l)
		if err != nil {
			return nil, err
		}
		defer javaSide.close()
		consumer = javaSide
	} else {
		goConsumer, err := startGoConsumer(strings.Split(clients, ";"), topic, "failover_gc_"+run, l)
		if err != nil {
			return nil, err
		}
		defer goConsumer.close()
		consumer = goConsumer
	}

	var faults []*fault
	for _, plan := range []struct {
		kind  string
		count int
	}{{"kill", o.kills}, {"crash", o.crashes}, {"stop", o.stops}, {"pause", o.pauses}} {
		for i := 0; i < plan.count; i++ {
			f, err := inflict(o, c, d, plan.kind, i, namesrvs, probeTopic)
			if err != nil {
				return nil, err
			}
			faults = append(faults, f)
			progress("%s", f)
		}
	}
	var outages []*outage
	for i := 0; i < o.outages; i++ {
		f, out, err := endure(o, c, i, namesrvs, topic, l)
		if err != nil {
			return nil, err
		}
		faults, outages = append(faults, f), append(outages, out)
		progress("%s", out)
	}
	time.Sleep(probeLead)
	goSide.stop()
	if err := consumer.stop(); err != nil {
		return nil, err
	}
	progress("sending has ended; waiting for the consumer")
	l.awaitReceived(drainLimit)
	return l.report(faults, outages, o.clients == ""), nil
}

// inflict waits until the cluster is healthy and quiet, then lets one leader fail and come back.
func inflict(o options, c cluster, d *disk, kind string, number int, namesrvs []string, topic string) (*fault, error) {
	v, err := c.awaitHealthy(recoveryLimit)
	if err != nil {
		return nil, fmt.Errorf("before %s %d: %w", kind, number+1, err)
	}
	// Clients learn who leads within their poll interval; a fault before that would be a second one for them.
	time.Sleep(o.settle - probeLead)
	group := v.Groups[number%len(v.Groups)].Name
	if o.oneGroup {
		group = v.Groups[0].Name
	}
	p, err := startProbe(namesrvs, topic, group, o.probeRate)
	if err != nil {
		return nil, err
	}
	time.Sleep(probeLead)
	// A group that stalls before the fault says nothing about the fault.
	for deadline := time.Now().Add(recoveryLimit); !p.calm() && time.Now().Before(deadline); {
		time.Sleep(probeLead)
	}
	f := &fault{Kind: kind, Group: group, Started: time.Now()}
	if f.Node, err = c.act(kind, "--leader", group); err != nil { // a stop returns when the process has ended
		p.end()
		return nil, err
	}
	f.Done = time.Now()
	switch kind {
	case "kill", "stop":
		time.Sleep(o.down)
		_, err = c.act("start", f.Node)
	case "crash":
		time.Sleep(o.down)
	case "pause":
		time.Sleep(o.pause)
		_, err = c.act("resume", f.Node)
	}
	back := time.Now()
	f.gapFrom(p.end())
	f.Sync = d.slowest(f.Started, back)
	if err != nil {
		return nil, err
	}
	if err := c.awaitCaughtUp(f.Node, recoveryLimit); err != nil {
		return nil, fmt.Errorf("after %s of %s: %w", kind, f.Node, err)
	}
	f.CaughtUp = millis(time.Since(back))
	f.Over = time.Now()
	return f, nil
}

func createTopic(namesrvs []string, topic string, oneGroup bool) error {
	route, err := wire.RouteOf(namesrvs[0], "TBW102")
	if err != nil {
		return err
	}
	client, err := admin.NewAdmin(admin.WithResolver(primitive.NewPassthroughResolver(namesrvs)))
	if err != nil {
		return err
	}
	defer client.Close()
	brokers := route.Brokers
	if oneGroup {
		// By name, as the cluster's own view has them.
		sort.Slice(brokers, func(i, j int) bool { return brokers[i].Name < brokers[j].Name })
		brokers = brokers[:1]
	}
	for _, broker := range brokers {
		err := client.CreateTopic(context.Background(), admin.WithTopicCreate(topic), admin.WithBrokerAddrCreate(broker.Addresses["0"]),
			admin.WithReadQueueNums(queues), admin.WithWriteQueueNums(queues))
		if err != nil {
			return fmt.Errorf("creating %s on %s: %w", topic, broker.Name, err)
		}
	}
	deadline := time.Now().Add(30 * time.Second)
	for {
		route, err := wire.RouteOf(namesrvs[0], topic)
		if err == nil && len(route.Queues) > 0 {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("no route of %s within 30 s: %w", topic, err)
		}
		time.Sleep(100 * time.Millisecond)
	}
}

func progress(format string, args ...any) {
	fmt.Fprintf(os.Stderr, time.Now().Format("15:04:05 ")+format+"\n", args...)
}
