package main

import (
	"fmt"
	"io"
	"sort"
	"sync"
	"time"
)

// place is where a message lies.
type place struct {
	broker string
	queue  int
	offset int64
}

func (p place) String() string {
	return fmt.Sprintf("%s queue %d offset %d", p.broker, p.queue, p.offset)
}

// ack is a send that was answered well.
type ack struct {
	stream   string
	number   int
	id       string
	at       place
	started  time.Time
	took     time.Duration
	attempts int
}

// failedCall is a send that the client gave up.
type failedCall struct {
	Stream  string        `json:"-"`
	ID      string        `json:"message"`
	Started time.Time     `json:"started"`
	Took    time.Duration `json:"took_ns"`
	Reason  string        `json:"reason"`
}

// delivery is the first time that the consumer was given the message at a place.
type delivery struct {
	id string
	at time.Time
}

// ledger holds what clients were told and what the consumer was given.
type ledger struct {
	mutex     sync.Mutex
	acks      []ack
	failures  []failedCall
	goRetries []time.Time
	given     map[place]delivery
	again     int
	conflicts []string
}

func newLedger() *ledger {
	return &ledger{given: map[place]delivery{}}
}

func (l *ledger) acknowledged(a ack) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	l.acks = append(l.acks, a)
}

func (l *ledger) failed(f failedCall) {
	progress("a send failed: %s after %v: %s", f.ID, f.Took, f.Reason)
	l.mutex.Lock()
	defer l.mutex.Unlock()
	l.failures = append(l.failures, f)
}

func (l *ledger) retried(at time.Time) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	l.goRetries = append(l.goRetries, at)
}

func (l *ledger) received(at place, id string) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	if before, is := l.given[at]; is {
		l.again++
		if before.id != id {
			l.conflicts = append(l.conflicts, fmt.Sprintf("%v held %s, then %s", at, before.id, id))
		}
		return
	}
	l.given[at] = delivery{id, time.Now()}
}

// awaitReceived waits until every acknowledged message came from its place, at most so long.
func (l *ledger) awaitReceived(limit time.Duration) {
	for deadline := time.Now().Add(limit); time.Now().Before(deadline); time.Sleep(500 * time.Millisecond) {
		l.mutex.Lock()
		missing := len(l.missing())
		l.mutex.Unlock()
		if missing == 0 {
			return
		}
	}
}

func (l *ledger) missing() []ack {
	var missing []ack
	for _, a := range l.acks {
		if l.given[a.at].id != a.id {
			missing = append(missing, a)
		}
	}
	return missing
}

// report is the outcome of a run.
type report struct {
	Faults            []*fault     `json:"faults"`
	Outages           []*outage    `json:"outages"`
	Gaps              []gaps       `json:"gaps"`
	GapsWithinTargets bool         `json:"gaps_within_targets"`
	Acknowledged      int          `json:"acknowledged"`
	Delivered         int          `json:"delivered"`
	DeliveredAgain    int          `json:"delivered_again"`
	StoredTwice       int          `json:"stored_twice"`
	Failures          []failedCall `json:"failed_calls"`
	Faulty            []string     `json:"faulty"`
}

// gaps sums up the times in which a group acknowledged nothing.
type gaps struct {
	Kind         string  `json:"kind"`
	Count        int     `json:"count"`
	Median       float64 `json:"median_ms"`
	Worst        float64 `json:"worst_ms"`
	MedianTarget float64 `json:"median_target_ms,omitempty"`
	WorstTarget  float64 `json:"worst_target_ms,omitempty"`
}

var targets = map[string][2]float64{"kill": {60, 300}, "crash": {60, 300}, "pause": {1000, 1500}}

// report judges the run. While a leader is paused, only clients of a sidecar must not see a call fail.
func (l *ledger) report(faults []*fault, outages []*outage, direct bool) *report {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	r := &report{Faults: faults, Outages: outages, Acknowledged: len(l.acks), Delivered: len(l.given), DeliveredAgain: l.again, Failures: l.failures}
	l.blame(faults)
	complain := func(count int, format string, args ...any) {
		if count > 0 {
			r.Faulty = append(r.Faulty, fmt.Sprintf("%d ", count)+fmt.Sprintf(format, args...))
		}
	}
	if missing := l.missing(); len(missing) > 0 {
		complain(len(missing), "acknowledged messages never came, such as %s, acknowledged at %v, where the consumer was given %q", missing[0].id, missing[0].at, l.given[missing[0].at].id)
	}
	if len(l.conflicts) > 0 {
		complain(len(l.conflicts), "places held two messages: %s", l.conflicts[0])
	}
	holes, example := l.holes()
	complain(holes, "offsets were left out, such as %s", example)
	disorder, example := l.disorder()
	complain(disorder, "messages lie before an earlier one of their stream: %s", example)
	r.StoredTwice = l.storedTwice()
	failed, retries := 0, 0
	for _, f := range faults {
		if f.Kind != "pause" || !direct {
			failed += f.Failed
		}
		if f.Kind == "stop" {
			retries += f.Retried + f.GoRetry
		}
	}
	if direct {
		complain(failed, "sends failed, not counting those while a leader was paused")
	} else {
		complain(failed, "sends failed")
	}
	complain(retries, "sends were tried again because of a graceful stop")
	for _, out := range outages {
		r.Faulty = append(r.Faulty, out.Faulty...)
	}
	if len(l.acks) == 0 {
		complain(1, "run without a single acknowledged message")
	}
	r.sumUp()
	return r
}

// blame counts for each fault what clients saw from its start to the start of the next.
func (l *ledger) blame(faults []*fault) {
	at := func(t time.Time) *fault {
		i := sort.Search(len(faults), func(i int) bool { return faults[i].Started.After(t) })
		if i == 0 {
			return &fault{}
		}
		return faults[i-1]
	}
	call := func(started time.Time, took time.Duration) *fault {
		f := at(started.Add(took)) // a call belongs to the fault that it met last
		f.Longest = max(f.Longest, millis(took))
		if took > time.Second {
			f.Long++
		}
		return f
	}
	for _, a := range l.acks {
		f := call(a.started, a.took)
		if a.attempts > 1 {
			f.Retried++
		}
	}
	for _, failure := range l.failures {
		call(failure.Started, failure.Took).Failed++
	}
	for _, t := range l.goRetries {
		at(t).GoRetry++
	}
}

// holes counts offsets that were not delivered although later ones of their queue were.
func (l *ledger) holes() (int, string) {
	type queue struct {
		broker string
		queue  int
	}
	last := map[queue]int64{}
	count := map[queue]int64{}
	for p := range l.given {
		q := queue{p.broker, p.queue}
		count[q]++
		last[q] = max(last[q], p.offset)
	}
	holes, example := 0, ""
	for q, end := range last {
		if count[q] == end+1 {
			continue
		}
		for offset := int64(0); offset <= end; offset++ {
			if _, is := l.given[place{q.broker, q.queue, offset}]; !is {
				holes++
				example = place{q.broker, q.queue, offset}.String()
			}
		}
	}
	return holes, example
}

// disorder counts messages that a stream sent later, but that lie before an earlier one in their queue.
func (l *ledger) disorder() (int, string) {
	acks := append([]ack(nil), l.acks...)
	sort.Slice(acks, func(a, b int) bool {
		if acks[a].stream != acks[b].stream {
			return acks[a].stream < acks[b].stream
		}
		return acks[a].number < acks[b].number
	})
	type line struct {
		stream, broker string
		queue          int
	}
	last := map[line]ack{}
	count, example := 0, ""
	for _, a := range acks {
		key := line{a.stream, a.at.broker, a.at.queue}
		if before, is := last[key]; is && before.at.offset >= a.at.offset {
			count++
			example = fmt.Sprintf("%s at %v, %s at %v", before.id, before.at, a.id, a.at)
		}
		last[key] = a
	}
	return count, example
}

// storedTwice counts messages that lie at more than one place: a retry after an attempt that had worked.
func (l *ledger) storedTwice() int {
	seen := map[string]bool{}
	count := 0
	for _, d := range l.given {
		if seen[d.id] {
			count++
		}
		seen[d.id] = true
	}
	return count
}

func (r *report) sumUp() {
	r.GapsWithinTargets = true
	for _, kind := range []string{"kill", "crash", "stop", "pause"} {
		var all []float64
		for _, f := range r.Faults {
			if f.Kind == kind {
				all = append(all, f.Gap)
			}
		}
		if len(all) == 0 {
			continue
		}
		sort.Float64s(all)
		g := gaps{Kind: kind, Count: len(all), Median: all[len(all)/2], Worst: all[len(all)-1]}
		if len(all)%2 == 0 {
			g.Median = (all[len(all)/2-1] + all[len(all)/2]) / 2
		}
		if target, is := targets[kind]; is {
			g.MedianTarget, g.WorstTarget = target[0], target[1]
			r.GapsWithinTargets = r.GapsWithinTargets && g.Median <= target[0] && g.Worst <= target[1]
		}
		r.Gaps = append(r.Gaps, g)
	}
}

func (r *report) print(out io.Writer) {
	fmt.Fprintf(out, "\n%-6s %-10s %-5s %9s %12s %8s %7s %12s %8s %7s %11s\n",
		"fault", "group", "node", "gap ms", "caught up ms", "sync ms", "failed", "retried Java", "and Go", "> 1 s", "longest ms")
	for _, f := range r.Faults {
		fmt.Fprintf(out, "%-6s %-10s %-5s %9.1f %12.0f %8.0f %7d %12d %8d %7d %11.0f\n", f.Kind, f.Group, f.Node, f.Gap, f.CaughtUp, f.Sync, f.Failed, f.Retried, f.GoRetry, f.Long, f.Longest)
		for what, count := range f.Refused {
			fmt.Fprintf(out, "       the probe was answered %d times: %s\n", count, what)
		}
	}
	fmt.Fprintf(out, "\n%-6s %6s %10s %10s %14s %14s\n", "fault", "count", "median ms", "worst ms", "median target", "worst target")
	for _, g := range r.Gaps {
		target := func(ms float64) string {
			if ms == 0 {
				return "-"
			}
			return fmt.Sprintf("%.0f", ms)
		}
		fmt.Fprintf(out, "%-6s %6d %10.1f %10.1f %14s %14s\n", g.Kind, g.Count, g.Median, g.Worst, target(g.MedianTarget), target(g.WorstTarget))
	}
	for _, away := range r.Outages {
		fmt.Fprintf(out, "\n%s\n", away)
	}
	fmt.Fprintf(out, "\nacknowledged %d, delivered %d and %d of them again, stored twice after a retry %d, failed calls %d\n",
		r.Acknowledged, r.Delivered, r.DeliveredAgain, r.StoredTwice, len(r.Failures))
	if len(r.Faulty) == 0 {
		fmt.Fprintln(out, "PASS failover: nothing acknowledged was lost, order was kept, the consumer was given everything")
	}
	for _, text := range r.Faulty {
		fmt.Fprintln(out, "FAIL failover", text)
	}
}
