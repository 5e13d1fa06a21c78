package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	rocketmq "github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
)

const (
	streams   = 4
	startTime = 60 * time.Second
)

var filler = " " + strings.Repeat("x", 180)

// consumerSide is the side that consumes: `stop` ends its sending, if it sends, and lets it consume on.
type consumerSide interface {
	stop() error
	close()
}

// goSide is a producer of rocketmq-client-go that sends synchronously at a steady rate, with the client's defaults.
type goSide struct {
	producer rocketmq.Producer
	ending   atomic.Bool
	senders  sync.WaitGroup
}

func startGo(namesrvs []string, topic, group string, rate int, l *ledger) (*goSide, error) {
	p, err := rocketmq.NewProducer(producer.WithNameServer(namesrvs), producer.WithGroupName(group), producer.WithInstanceName(group))
	if err != nil {
		return nil, err
	}
	if err := p.Start(); err != nil {
		return nil, err
	}
	side := &goSide{producer: p}
	for i := 0; i < streams; i++ {
		side.senders.Add(1)
		go side.stream(topic, fmt.Sprintf("go%d", i), time.Second*streams/time.Duration(rate), l)
	}
	return side, nil
}

// stream sends one message after the other, at least `interval` apart; lost time is not made up for.
func (s *goSide) stream(topic, name string, interval time.Duration, l *ledger) {
	defer s.senders.Done()
	next := time.Now()
	for number := 0; !s.ending.Load(); number++ {
		if wait := time.Until(next); wait > 0 {
			time.Sleep(wait)
		} else {
			next = time.Now()
		}
		next = next.Add(interval)
		id := name + ":" + strconv.Itoa(number)
		started := time.Now()
		result, err := s.producer.SendSync(context.Background(), primitive.NewMessage(topic, []byte(id+filler)))
		took := time.Since(started)
		if err != nil || result.Status != primitive.SendOK {
			l.failed(failedCall{Stream: name, ID: id, Started: started, Took: took, Reason: fmt.Sprintf("%v %v", result, err)})
			continue
		}
		at := place{result.MessageQueue.BrokerName, result.MessageQueue.QueueId, result.QueueOffset}
		l.acknowledged(ack{stream: name, number: number, id: id, at: at, started: started, took: took, attempts: 1})
	}
}

func (s *goSide) stop() {
	s.ending.Store(true)
	s.senders.Wait()
}

func (s *goSide) close() {
	s.stop()
	_ = s.producer.Shutdown()
}

// retryLog listens to the client's log for the one line that tells of a retry.
type retryLog struct {
	ledger *ledger
}

func (r *retryLog) Warning(text string, _ map[string]interface{}) {
	if strings.HasPrefix(text, "start retrying to send") {
		r.ledger.retried(time.Now())
	}
}
func (r *retryLog) Debug(string, map[string]interface{}) {}
func (r *retryLog) Info(string, map[string]interface{})  {}
func (r *retryLog) Error(string, map[string]interface{}) {}
func (r *retryLog) Fatal(string, map[string]interface{}) {}
func (r *retryLog) Level(string)                         {}
func (r *retryLog) OutputPath(string) error              { return nil }

// goConsumer stands in for the Java push consumer where there is no Java.
type goConsumer struct {
	consumer rocketmq.PushConsumer
}

func startGoConsumer(namesrvs []string, topic, group string, l *ledger) (*goConsumer, error) {
	c, err := rocketmq.NewPushConsumer(consumer.WithNameServer(namesrvs), consumer.WithGroupName(group), consumer.WithInstance(group),
		consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset))
	if err != nil {
		return nil, err
	}
	err = c.Subscribe(topic, consumer.MessageSelector{}, func(_ context.Context, batch ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
		for _, m := range batch {
			id, _, _ := strings.Cut(string(m.Body), " ")
			l.received(place{m.Queue.BrokerName, m.Queue.QueueId, m.QueueOffset}, id)
		}
		return consumer.ConsumeSuccess, nil
	})
	if err != nil {
		return nil, err
	}
	if err := c.Start(); err != nil {
		return nil, err
	}
	return &goConsumer{c}, nil
}

func (c *goConsumer) stop() error { return nil }
func (c *goConsumer) close()      { _ = c.consumer.Shutdown() }

// javaSide is the Java producer and push consumer, a process that tells on standard output what happens.
type javaSide struct {
	command *exec.Cmd
	input   io.WriteCloser
	said    chan string
}

func startJava(words []string, namesrv, topic, group string, rate int, l *ledger) (*javaSide, error) {
	command := exec.Command(words[0], append(words[1:], namesrv, topic, group, strconv.Itoa(rate))...)
	command.Stderr = os.Stderr
	input, err := command.StdinPipe()
	if err != nil {
		return nil, err
	}
	output, err := command.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := command.Start(); err != nil {
		return nil, err
	}
	side := &javaSide{command: command, input: input, said: make(chan string, 4)}
	go side.listen(output, l)
	return side, side.await("STARTED", startTime)
}

func (s *javaSide) listen(output io.Reader, l *ledger) {
	defer close(s.said)
	lines := bufio.NewScanner(output)
	for lines.Scan() {
		words := strings.Fields(lines.Text())
		if len(words) == 0 {
			continue
		}
		switch {
		case words[0] == "A" && len(words) == 9:
			l.acknowledged(ack{
				stream: words[1], number: number(words[2]), id: words[1] + ":" + words[2],
				at:      place{words[3], number(words[4]), int64(number(words[5]))},
				started: time.UnixMicro(int64(number(words[6]))), took: time.Duration(number(words[7])) * time.Microsecond, attempts: number(words[8]),
			})
		case words[0] == "F" && len(words) >= 6:
			l.failed(failedCall{Stream: words[1], ID: words[1] + ":" + words[2], Started: time.UnixMicro(int64(number(words[3]))),
				Took: time.Duration(number(words[4])) * time.Microsecond, Reason: strings.Join(words[6:], " ")})
		case words[0] == "R" && len(words) == 5:
			l.received(place{words[1], number(words[2]), int64(number(words[3]))}, words[4])
		case words[0] == "STARTED" || words[0] == "STOPPED":
			s.said <- words[0]
		}
	}
}

// number reads what our own program printed.
func number(word string) int {
	n, err := strconv.Atoi(word)
	if err != nil {
		panic(fmt.Sprintf("the Java side printed %q for a number", word))
	}
	return n
}

func (s *javaSide) await(word string, limit time.Duration) error {
	select {
	case said, open := <-s.said:
		if open && said == word {
			return nil
		}
		return fmt.Errorf("the Java side said %q, not %q", said, word)
	case <-time.After(limit):
		return fmt.Errorf("the Java side did not say %q within %v", word, limit)
	}
}

func (s *javaSide) stop() error {
	if _, err := io.WriteString(s.input, "stop\n"); err != nil {
		return err
	}
	return s.await("STOPPED", startTime)
}

func (s *javaSide) close() {
	s.input.Close()
	ended := make(chan struct{})
	go func() {
		_ = s.command.Wait()
		close(ended)
	}()
	select {
	case <-ended:
	case <-time.After(20 * time.Second):
		_ = s.command.Process.Kill()
		<-ended
	}
}
