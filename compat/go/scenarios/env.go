package main

import (
	"context"
	"fmt"
	"os"
	"reflect"
	"sort"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"gantry/compat/wire"

	rocketmq "github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/admin"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
)

// Members hear of each other by a notice; without it they look every 20 s.
const rebalanceLimit = 60 * time.Second

// The template of topics that are made on demand; every broker group has it.
const templateTopic = "TBW102"

var instances atomic.Int64

// A failure ends a scenario; it is thrown by check and its kin.
type failure string

// env is what a scenario works with: names of its own, and clients that are shut down when it ends.
type env struct {
	namesrvs []string
	scenario string
	run      string
	notes    []string

	mutex    sync.Mutex
	cleanups []func()
}

func newEnv(namesrvs []string, scenario string) *env {
	return &env{namesrvs: namesrvs, scenario: scenario, run: strconv.FormatInt(time.Now().UnixMilli(), 36)}
}

// name gives a name that no other scenario and no earlier run has.
func (e *env) name(kind string) string {
	return "go_" + e.scenario + "_" + kind + "_" + e.run
}

// note adds a figure to the scenario's result line.
func (e *env) note(format string, args ...any) {
	e.notes = append(e.notes, fmt.Sprintf(format, args...))
}

func (e *env) later(cleanup func()) {
	e.mutex.Lock()
	defer e.mutex.Unlock()
	e.cleanups = append(e.cleanups, cleanup)
}

func (e *env) close() {
	e.mutex.Lock()
	defer e.mutex.Unlock()
	for i := len(e.cleanups) - 1; i >= 0; i-- {
		e.cleanups[i]()
	}
	e.cleanups = nil
}

func instance() string {
	return fmt.Sprintf("compat%d_%d", os.Getpid(), instances.Add(1))
}

func (e *env) producer(options ...producer.Option) rocketmq.Producer {
	options = append([]producer.Option{
		producer.WithNameServer(primitive.NamesrvAddr(e.namesrvs)),
		producer.WithGroupName(e.name("pg") + instance()),
		producer.WithInstanceName(instance()),
	}, options...)
	p, err := rocketmq.NewProducer(options...)
	must(err, "making a producer")
	must(p.Start(), "starting a producer")
	e.later(func() { _ = p.Shutdown() })
	return p
}

// pushConsumer makes a push consumer, not started, that reads its topics from the first message on.
func (e *env) pushConsumer(group string, options ...consumer.Option) rocketmq.PushConsumer {
	options = append([]consumer.Option{
		consumer.WithNameServer(primitive.NamesrvAddr(e.namesrvs)),
		consumer.WithGroupName(group),
		consumer.WithInstance(instance()),
		consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset),
	}, options...)
	c, err := rocketmq.NewPushConsumer(options...)
	must(err, "making a push consumer")
	e.later(func() { _ = c.Shutdown() })
	return c
}

// member starts a push consumer that puts what it is given into `in`.
func (e *env) member(group, topic, tags string, in *inbox, options ...consumer.Option) rocketmq.PushConsumer {
	c := e.pushConsumer(group, options...)
	must(c.Subscribe(topic, consumer.MessageSelector{Type: consumer.TAG, Expression: tags}, in.receive), "subscribing to "+topic)
	must(c.Start(), "starting a push consumer")
	return c
}

// puller starts a pull consumer to which no queue of the topic is given: it pulls when asked.
func (e *env) puller(group, topic string) rocketmq.PullConsumer {
	c, err := rocketmq.NewPullConsumer(
		consumer.WithNameServer(primitive.NamesrvAddr(e.namesrvs)),
		consumer.WithGroupName(group),
		consumer.WithInstance(instance()),
		consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset),
	)
	must(err, "making a pull consumer")
	must(c.Assign(topic, nil), "assigning no queue of "+topic)
	must(c.Start(), "starting a pull consumer")
	e.later(func() { _ = c.Shutdown() })
	return c
}

// topic creates a topic with `queues` queues on every broker group and waits until its whole route is known.
func (e *env) topic(kind string, queues int) string {
	topic := e.name(kind)
	template, err := wire.RouteOf(e.namesrvs[0], templateTopic)
	must(err, "asking for the template topic")
	client, err := admin.NewAdmin(admin.WithResolver(primitive.NewPassthroughResolver(e.namesrvs)))
	must(err, "making an admin client")
	defer client.Close()
	for _, broker := range template.Brokers {
		must(client.CreateTopic(context.Background(), admin.WithTopicCreate(topic), admin.WithBrokerAddrCreate(broker.Addresses["0"]),
			admin.WithReadQueueNums(queues), admin.WithWriteQueueNums(queues)), "creating "+topic+" on "+broker.Name)
	}
	await("the route of "+topic, 30*time.Second, func() bool {
		route, err := wire.RouteOf(e.namesrvs[0], topic)
		count := 0
		for _, q := range route.Queues {
			count += q.Writes
		}
		return err == nil && count == queues*len(template.Brokers)
	})
	return topic
}

// readAll gives everything that a topic holds now, queue by queue, read by pulls from the first message on.
func (e *env) readAll(topic string) map[primitive.MessageQueue][]*primitive.MessageExt {
	reader := e.puller(e.name("reader")+instance(), topic)
	queues, err := reader.GetTopicRouteInfo(topic)
	must(err, "asking for the queues of "+topic)
	stored := map[primitive.MessageQueue][]*primitive.MessageExt{}
	for _, queue := range queues {
		// A pull at the end would wait there for the next message.
		end, err := reader.OffsetForTimestamp(queue, time.Now().Add(time.Hour).UnixMilli())
		must(err, fmt.Sprintf("asking for the end of %v", queue))
		for offset := int64(0); offset < end; {
			result, err := reader.PullFrom(context.Background(), queue, offset, 32)
			must(err, fmt.Sprintf("pulling at %d of %v", offset, queue))
			check(result.Status == primitive.PullFound, "a pull at %d of %v answered %v", offset, queue, *result)
			for _, message := range result.GetMessageExts() {
				equal(offset, message.QueueOffset, "offsets of %v in a row", queue)
				stored[*queue] = append(stored[*queue], message)
				offset++
			}
			equal(offset, result.NextBeginOffset, "the next offset after a pull from %v", queue)
		}
	}
	_ = reader.Shutdown()
	return stored
}

// storedTexts gives the bodies of readAll as text, sorted.
func (e *env) storedTexts(topic string) []string {
	var texts []string
	for _, messages := range e.readAll(topic) {
		for _, message := range messages {
			texts = append(texts, string(message.Body))
		}
	}
	sort.Strings(texts)
	return texts
}

// send sends synchronously and gives the answer, which must be a good one.
func send(p rocketmq.Producer, messages ...*primitive.Message) *primitive.SendResult {
	result, err := p.SendSync(context.Background(), messages...)
	must(err, "sending")
	check(result.Status == primitive.SendOK, "a send answered %v", result)
	return result
}

func sendTexts(p rocketmq.Producer, topic string, texts []string) {
	for _, text := range texts {
		send(p, message(topic, text))
	}
}

func message(topic, text string) *primitive.Message {
	return primitive.NewMessage(topic, []byte(text))
}

// numbered gives texts that name a message by its number.
func numbered(from, to int) []string {
	var texts []string
	for i := from; i < to; i++ {
		texts = append(texts, fmt.Sprintf("message %06d", i))
	}
	return texts
}

func check(holds bool, format string, args ...any) {
	if !holds {
		panic(failure(fmt.Sprintf(format, args...)))
	}
}

func must(err error, doing string) {
	check(err == nil, "%s: %v", doing, err)
}

func equal[T any](expected, found T, format string, args ...any) {
	if !reflect.DeepEqual(expected, found) {
		panic(failure(fmt.Sprintf("%s: expected %s, found %s", fmt.Sprintf(format, args...), brief(expected), brief(found))))
	}
}

func brief(value any) string {
	if texts, is := value.([]string); is && len(texts) > 20 {
		return fmt.Sprintf("%d elements %q...", len(texts), texts[:20])
	}
	return fmt.Sprintf("%v", value)
}

// await waits until `condition` holds; `what` says for what when it never does.
func await(what string, limit time.Duration, condition func() bool) {
	deadline := time.Now().Add(limit)
	for !condition() {
		check(time.Now().Before(deadline), "waited %v for %s", limit, what)
		time.Sleep(20 * time.Millisecond)
	}
}

// inbox holds what listeners were given, in that order; one inbox can serve several consumers.
type inbox struct {
	mutex    sync.Mutex
	messages []*primitive.MessageExt
}

func (in *inbox) receive(_ context.Context, batch ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
	in.mutex.Lock()
	defer in.mutex.Unlock()
	in.messages = append(in.messages, batch...)
	return consumer.ConsumeSuccess, nil
}

func (in *inbox) all() []*primitive.MessageExt {
	in.mutex.Lock()
	defer in.mutex.Unlock()
	return append([]*primitive.MessageExt(nil), in.messages...)
}

// texts gives the bodies as text, sorted, with those that came twice twice.
func (in *inbox) texts() []string {
	return textsOf(in)
}

func textsOf(inboxes ...*inbox) []string {
	var texts []string
	for _, in := range inboxes {
		for _, m := range in.all() {
			texts = append(texts, string(m.Body))
		}
	}
	sort.Strings(texts)
	return texts
}

func missing(expected []string, inboxes ...*inbox) []string {
	there := map[string]bool{}
	for _, text := range textsOf(inboxes...) {
		there[text] = true
	}
	var absent []string
	for _, text := range expected {
		if !there[text] {
			absent = append(absent, text)
		}
	}
	return absent
}

// awaitCover waits until the inboxes together have each of `expected`, once or more.
func awaitCover(expected []string, limit time.Duration, inboxes ...*inbox) {
	deadline := time.Now().Add(limit)
	for {
		absent := missing(expected, inboxes...)
		if len(absent) == 0 {
			return
		}
		check(time.Now().Before(deadline), "waited %v for %d messages, %d of them missing, such as %q", limit, len(expected), len(absent), absent[:min(5, len(absent))])
		time.Sleep(20 * time.Millisecond)
	}
}

// awaitExactly waits for all of `expected`, then checks that nothing else came and nothing came twice.
func (in *inbox) awaitExactly(expected []string, limit time.Duration) {
	awaitCover(expected, limit, in)
	sorted := append([]string(nil), expected...)
	sort.Strings(sorted)
	equal(sorted, in.texts(), "what the consumer was given")
}
