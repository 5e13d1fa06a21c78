package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
)

// Ways to send, each checked by reading the topic back.
var sending = []scenario{
	{"send_sync", sendSync},
	{"send_async", sendAsync},
	{"send_oneway", sendOneway},
	{"send_batch", sendBatch},
	{"send_ordered", sendOrdered},
	{"send_chosen_queue", sendChosenQueue},
	{"auto_created_topic", autoCreatedTopic},
}

type place struct {
	broker string
	queue  int
	offset int64
}

// Each answer names the queue and the offset at which the message is then found.
func sendSync(e *env) {
	topic := e.topic("t", 4)
	p := e.producer()
	answered := map[place]string{}
	for _, text := range numbered(0, 300) {
		result := send(p, message(topic, text))
		at := place{result.MessageQueue.BrokerName, result.MessageQueue.QueueId, result.QueueOffset}
		check(answered[at] == "", "%v was given twice", at)
		answered[at] = text
	}
	found := map[place]string{}
	for queue, messages := range e.readAll(topic) {
		for _, m := range messages {
			found[place{queue.BrokerName, queue.QueueId, m.QueueOffset}] = string(m.Body)
		}
	}
	equal(answered, found, "bodies by queue and offset")
}

func sendAsync(e *env) {
	topic := e.topic("t", 4)
	p := e.producer()
	texts := numbered(0, 1000)
	inFlight := make(chan struct{}, 100)
	var wait sync.WaitGroup
	var mutex sync.Mutex
	var faults []string
	for _, text := range texts {
		inFlight <- struct{}{}
		wait.Add(1)
		err := p.SendAsync(context.Background(), func(_ context.Context, result *primitive.SendResult, err error) {
			if err != nil || result.Status != primitive.SendOK {
				mutex.Lock()
				faults = append(faults, fmt.Sprintf("%v %v", result, err))
				mutex.Unlock()
			}
			<-inFlight
			wait.Done()
		}, message(topic, text))
		must(err, "sending")
	}
	wait.Wait()
	check(len(faults) == 0, "%d sends failed, such as %q", len(faults), faults)
	equal(texts, e.storedTexts(topic), "stored bodies")
}

func sendOneway(e *env) {
	topic := e.topic("t", 4)
	p := e.producer()
	texts := numbered(0, 300)
	for _, text := range texts {
		must(p.SendOneWay(context.Background(), message(topic, text)), "sending one-way")
	}
	await("300 one-way messages", 20*time.Second, func() bool { return len(e.storedTexts(topic)) >= len(texts) })
	equal(texts, e.storedTexts(topic), "stored bodies")
}

// A batch lies in one queue, in its order, and each message keeps its own properties.
func sendBatch(e *env) {
	topic := e.topic("t", 4)
	p := e.producer()
	for n := 0; n < 5; n++ {
		var batch []*primitive.Message
		for i, text := range numbered(n*100, n*100+100) {
			m := message(topic, text)
			m.WithTag("Batch" + strconv.Itoa(n))
			m.WithProperty("number", strconv.Itoa(n*100+i))
			batch = append(batch, m)
		}
		result := send(p, batch...)
		equal(100, len(strings.Split(result.OffsetMsgID, ",")), "offset message ids of a batch")
	}
	count := 0
	for queue, messages := range e.readAll(topic) {
		for i, m := range messages {
			count++
			number, err := strconv.Atoi(m.GetProperty("number"))
			must(err, "reading the number of a message")
			equal(fmt.Sprintf("message %06d", number), string(m.Body), "body beside its property")
			equal("Batch"+strconv.Itoa(number/100), m.GetTags(), "tag of a message in a batch")
			if number%100 != 0 {
				equal(fmt.Sprintf("message %06d", number-1), string(messages[i-1].Body), "the message before %d in %v", number, queue)
			}
		}
	}
	equal(500, count, "stored messages")
}

// Messages that share a key lie in one queue, in the order of sending.
func sendOrdered(e *env) {
	topic := e.topic("t", 4)
	p := e.producer(producer.WithQueueSelector(producer.NewHashQueueSelector()))
	for step := 0; step < 50; step++ {
		for order := 0; order < 8; order++ {
			m := message(topic, fmt.Sprintf("%d:%d", order, step))
			m.WithShardingKey("order " + strconv.Itoa(order))
			send(p, m)
		}
	}
	nextStep := map[int]int{}
	queueOf := map[int]primitive.MessageQueue{}
	for queue, messages := range e.readAll(topic) {
		for _, m := range messages {
			var order, step int
			_, err := fmt.Sscanf(string(m.Body), "%d:%d", &order, &step)
			must(err, "reading a body")
			equal(nextStep[order], step, "next step of order %d", order)
			nextStep[order]++
			if before, is := queueOf[order]; is {
				equal(before, queue, "queue of order %d", order)
			}
			queueOf[order] = queue
		}
	}
	for order := 0; order < 8; order++ {
		equal(50, nextStep[order], "stored steps of order %d", order)
	}
}

func sendChosenQueue(e *env) {
	topic := e.topic("t", 4)
	p := e.producer(producer.WithQueueSelector(producer.NewManualQueueSelector()))
	reader := e.puller(e.name("g"), topic)
	queues, err := reader.GetTopicRouteInfo(topic)
	must(err, "asking for the queues")
	for n, queue := range queues {
		for i := 0; i < 10; i++ {
			m := message(topic, fmt.Sprintf("%d:%d", n, i))
			m.Queue = queue
			result := send(p, m)
			equal(queue.BrokerName, result.MessageQueue.BrokerName, "broker of a message sent to a chosen queue")
			equal(queue.QueueId, result.MessageQueue.QueueId, "queue of a message sent to a chosen queue")
			equal(int64(i), result.QueueOffset, "offset of a message sent to a chosen queue")
		}
	}
	stored := e.readAll(topic)
	for n, queue := range queues {
		for i, m := range stored[*queue] {
			equal(fmt.Sprintf("%d:%d", n, i), string(m.Body), "message %d of %v", i, queue)
		}
		equal(10, len(stored[*queue]), "messages of %v", queue)
	}
}

// The first send to an unknown topic makes it.
func autoCreatedTopic(e *env) {
	topic := e.name("t")
	p := e.producer()
	sendTexts(p, topic, numbered(0, 50))
	in := &inbox{}
	e.member(e.name("g"), topic, "*", in)
	in.awaitExactly(numbered(0, 50), rebalanceLimit)
}
