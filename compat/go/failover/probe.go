package main

import (
	"fmt"
	"strconv"
	"sync"
	"time"

	"gantry/compat/wire"
)

const (
	redialInterval   = 5 * time.Millisecond
	probeInFlightMax = 20_000
	calmTime         = 800 * time.Millisecond
	calmGapMax       = 100 * time.Millisecond
)

// probe sends small messages to every replica of a group in turn, without waiting for answers, and notes when each
// acknowledgement comes. Followers forward, so a group that works acknowledges whoever is asked.
type probe struct {
	group, topic string
	stop         chan struct{}
	senders      sync.WaitGroup

	mutex    sync.Mutex
	acks     []time.Time
	refused  map[string]int
	inFlight int
}

func startProbe(namesrvs []string, topic, group string, rate int) (*probe, error) {
	route, err := wire.RouteOf(namesrvs[0], topic)
	if err != nil {
		return nil, err
	}
	var addresses []string
	for _, broker := range route.Brokers {
		if broker.Name == group {
			for _, address := range broker.Addresses {
				addresses = append(addresses, address)
			}
		}
	}
	if len(addresses) == 0 {
		return nil, fmt.Errorf("the route of %s has no %s", topic, group)
	}
	p := &probe{group: group, topic: topic, stop: make(chan struct{}), refused: map[string]int{}}
	for _, address := range addresses {
		p.senders.Add(1)
		go p.send(address, time.Second*time.Duration(len(addresses))/time.Duration(rate))
	}
	return p, nil
}

// send keeps a connection to one replica and sends at fixed times; while there is no connection nothing is sent there.
func (p *probe) send(address string, interval time.Duration) {
	defer p.senders.Done()
	var conn *wire.Conn
	lost := make(chan struct{}, 1)
	next := time.Now()
	for {
		select {
		case <-p.stop:
			if conn != nil {
				conn.Close()
			}
			return
		case <-lost:
			conn = nil
		default:
		}
		if conn == nil {
			dialled, err := wire.Dial(address)
			if err != nil {
				time.Sleep(redialInterval)
				continue
			}
			conn, lost, next = dialled, make(chan struct{}, 1), time.Now()
		}
		p.startOne(conn, lost)
		next = next.Add(interval)
		time.Sleep(time.Until(next))
	}
}

func (p *probe) startOne(conn *wire.Conn, lost chan struct{}) {
	p.mutex.Lock()
	full := p.inFlight >= probeInFlightMax
	if !full {
		p.inFlight++
	}
	p.mutex.Unlock()
	if full {
		return
	}
	ext := map[string]string{
		"producerGroup": "failover_probe", "topic": p.topic, "defaultTopic": "TBW102", "defaultTopicQueueNums": "4",
		"queueId": "0", "sysFlag": "0", "bornTimestamp": strconv.FormatInt(time.Now().UnixMilli(), 10), "flag": "0",
		"properties": "", "reconsumeTimes": "0", "unitMode": "false", "batch": "false",
	}
	conn.Start(wire.SendMessage, ext, []byte("probe"), func(answer wire.Answer, err error) {
		now := time.Now()
		p.mutex.Lock()
		p.inFlight--
		switch {
		case err != nil:
			select {
			case lost <- struct{}{}:
			default:
			}
		case answer.Code == wire.Success:
			p.acks = append(p.acks, now)
		default:
			p.refused[fmt.Sprintf("%d %.60s", answer.Code, answer.Remark)]++
		}
		p.mutex.Unlock()
	})
}

// calm says whether the group has acknowledged all the time of late.
func (p *probe) calm() bool {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	now := time.Now()
	last := now.Add(-calmTime)
	for _, ack := range p.acks {
		if ack.After(last) {
			if ack.Sub(last) > calmGapMax {
				return false
			}
			last = ack
		}
	}
	return now.Sub(last) <= calmGapMax
}

// end stops sending and gives the times of the acknowledgements, in order, and what was refused.
func (p *probe) end() ([]time.Time, map[string]int) {
	close(p.stop)
	p.senders.Wait()
	p.mutex.Lock()
	defer p.mutex.Unlock()
	return append([]time.Time(nil), p.acks...), p.refused
}

// fault is one leader's failure and what it did to its group.
type fault struct {
	Kind     string         `json:"kind"`
	Group    string         `json:"group"`
	Node     string         `json:"node"`
	Started  time.Time      `json:"started"`
	Done     time.Time      `json:"done"`
	Over     time.Time      `json:"over"`
	Gap      float64        `json:"gap_ms"`
	CaughtUp float64        `json:"caught_up_ms"`
	Sync     float64        `json:"slowest_sync_ms"`
	Refused  map[string]int `json:"probe_refused,omitempty"`

	// What the clients saw from this fault's start to the next one's.
	Failed  int     `json:"failed_calls"`
	Retried int     `json:"retried_java"`
	GoRetry int     `json:"retries_go"`
	Long    int     `json:"calls_over_1s"`
	Longest float64 `json:"longest_call_ms"`
}

func (f *fault) String() string {
	return fmt.Sprintf("%s of %s, leader of %s: no acknowledgement for %.1f ms, caught up %.0f ms after its return, slowest sync of the disk %.0f ms", f.Kind, f.Node, f.Group, f.Gap, f.CaughtUp, f.Sync)
}

// gapFrom finds the longest time without an acknowledgement that ends after the fault began.
func (f *fault) gapFrom(acks []time.Time, refused map[string]int) {
	f.Refused = refused
	end := time.Now()
	longest := time.Duration(0)
	last := f.Started
	for _, ack := range acks {
		if ack.After(f.Started) && ack.Sub(last) > longest {
			longest = ack.Sub(last)
		}
		last = ack
	}
	if end.Sub(last) > longest {
		longest = end.Sub(last) // it never came back while the probe ran
	}
	f.Gap = millis(longest)
}

func millis(d time.Duration) float64 {
	return float64(d.Microseconds()) / 1000
}
