package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	rocketmq "github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
)

// What takes more than one message: transactions, and requests with their replies.
var exchanges = []scenario{
	{"transaction", transaction},
	{"transaction_check", transactionCheck},
	{"request_reply", requestReply},
}

// byLetter ends transactions by the first letter of their message: c commits, r rolls back, all else is not known yet.
type byLetter struct {
	mutex sync.Mutex
	asked map[string]int
}

func (*byLetter) ExecuteLocalTransaction(m *primitive.Message) primitive.LocalTransactionState {
	switch m.Body[0] {
	case 'c':
		return primitive.CommitMessageState
	case 'r':
		return primitive.RollbackMessageState
	}
	return primitive.UnkonwnState
}

func (b *byLetter) CheckLocalTransaction(m *primitive.MessageExt) primitive.LocalTransactionState {
	b.mutex.Lock()
	defer b.mutex.Unlock()
	text := string(m.Body)
	b.asked[text]++
	switch {
	case text == "later: commit":
		return primitive.CommitMessageState
	case text == "later: rollback":
		return primitive.RollbackMessageState
	case b.asked[text] < 2:
		return primitive.UnkonwnState
	}
	return primitive.CommitMessageState
}

func (e *env) transactionProducer(listener primitive.TransactionListener) rocketmq.TransactionProducer {
	p, err := rocketmq.NewTransactionProducer(listener,
		producer.WithNameServer(primitive.NamesrvAddr(e.namesrvs)),
		producer.WithGroupName(e.name("pg")+instance()),
		producer.WithInstanceName(instance()),
	)
	must(err, "making a transaction producer")
	must(p.Start(), "starting a transaction producer")
	e.later(func() { _ = p.Shutdown() })
	return p
}

func sendInTransaction(p rocketmq.TransactionProducer, m *primitive.Message, state primitive.LocalTransactionState) {
	result, err := p.SendMessageInTransaction(context.Background(), m)
	must(err, "sending in a transaction")
	check(result.Status == primitive.SendOK, "a send answered %v", result)
	equal(state, result.State, "the state of %s", m.Body)
}

// What is committed comes once, what is rolled back never.
func transaction(e *env) {
	topic := e.topic("t", 2)
	in := &inbox{}
	e.member(e.name("g"), topic, "*", in)
	p := e.transactionProducer(&byLetter{asked: map[string]int{}})
	var expected []string
	for i := 0; i < 30; i++ {
		text := fmt.Sprintf("commit %d", i)
		expected = append(expected, text)
		sendInTransaction(p, message(topic, text), primitive.CommitMessageState)
		sendInTransaction(p, message(topic, fmt.Sprintf("rollback %d", i)), primitive.RollbackMessageState)
	}
	in.awaitExactly(expected, rebalanceLimit)
	time.Sleep(2 * time.Second)
	in.awaitExactly(expected, rebalanceLimit)
}

// A producer that does not know is asked until it does, by default every 30 s.
func transactionCheck(e *env) {
	topic := e.topic("t", 2)
	in := &inbox{}
	e.member(e.name("g"), topic, "*", in)
	listener := &byLetter{asked: map[string]int{}}
	p := e.transactionProducer(listener)
	for _, text := range []string{"later: commit", "later: rollback", "much later: commit"} {
		sendInTransaction(p, message(topic, text), primitive.UnkonwnState)
	}
	in.awaitExactly([]string{"later: commit", "much later: commit"}, 150*time.Second)
	listener.mutex.Lock()
	defer listener.mutex.Unlock()
	equal(map[string]int{"later: commit": 1, "later: rollback": 1, "much later: commit": 2}, listener.asked, "checks")
}

// Each request gets its own reply.
func requestReply(e *env) {
	topic := e.topic("t", 2)
	replier := e.producer()
	c := e.pushConsumer(e.name("g"))
	receive := func(_ context.Context, batch ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
		for _, request := range batch {
			body := []byte("re: " + string(request.Body))
			reply, err := consumer.CreateReplyMessage(request, body)
			if err != nil {
				continue
			}
			// The client forgets the body.
			reply.Body = body
			if _, err := replier.SendSync(context.Background(), reply); err != nil {
				fmt.Println("a reply failed:", err)
			}
		}
		return consumer.ConsumeSuccess, nil
	}
	must(c.Subscribe(topic, consumer.MessageSelector{Type: consumer.TAG, Expression: "*"}, receive), "subscribing to "+topic)
	must(c.Start(), "starting a push consumer")
	requester := e.producer()
	// The requester is known to a broker once its heartbeat was there, and the consumer once it has its queues.
	await("the first reply", rebalanceLimit, func() bool {
		_, err := requester.Request(context.Background(), 3*time.Second, message(topic, "first"))
		return err == nil
	})
	failed := make(chan string, 20)
	for i := 0; i < cap(failed); i++ {
		go func(text string) {
			reply, err := requester.Request(context.Background(), 10*time.Second, message(topic, text))
			switch {
			case err != nil:
				failed <- fmt.Sprintf("%s: %v", text, err)
			case string(reply.Body) != "re: "+text:
				failed <- fmt.Sprintf("%s was answered %q", text, reply.Body)
			default:
				failed <- ""
			}
		}(fmt.Sprintf("request %d", i))
	}
	for i := 0; i < cap(failed); i++ {
		fault := <-failed
		check(fault == "", "%s", fault)
	}
}
