package main

import (
	"context"
	"fmt"
	"hash/crc32"
	"math/rand"
	"strconv"
	"sync"
	"time"

	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
)

// What a message carries: bodies of every size, text of every script.
var bodies = []scenario{
	{"bodies_100_mb", bodies100MB},
	{"utf8_properties", utf8Properties},
}

const (
	mib      = 1 << 20
	bodyMax  = 4 * mib
	totalMin = 100_000_000
)

var sizes = []int{
	1, 2, 3, 7, 100, 1000, 1023, 1024, 1025, 4095, 4096, 4097, 16_383, 65_535, 65_536, 65_537,
	262_144, mib - 1, mib, 2 * mib, bodyMax - 1, bodyMax,
}

// Random bodies travel as they are, text bodies compressed by the client; all come back byte for byte.
func bodies100MB(e *env) {
	topic := e.topic("t", 1)
	plain := e.producer(producer.WithCompressMsgBodyOverHowmuch(1<<30), producer.WithSendMsgTimeout(20*time.Second))
	compressing := e.producer(producer.WithSendMsgTimeout(20 * time.Second))

	var mutex sync.Mutex
	waiting := map[string]bool{}
	var faults []string
	c := e.pushConsumer(e.name("g"), consumer.WithPullThresholdSizeForQueue(16))
	must(c.Subscribe(topic, consumer.MessageSelector{}, func(_ context.Context, batch ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
		mutex.Lock()
		defer mutex.Unlock()
		for _, m := range batch {
			if found := describe(m.GetProperty("number"), m.Body); found != m.GetKeys() {
				faults = append(faults, m.GetKeys()+" came as "+found)
			}
			delete(waiting, m.GetKeys())
		}
		return consumer.ConsumeSuccess, nil
	}), "subscribing")
	must(c.Start(), "starting a consumer")

	random := rand.New(rand.NewSource(1))
	total, number := 0, 0
	for round := 0; total < totalMin; round++ {
		for _, size := range sizes {
			body := make([]byte, size)
			p := plain
			if round%2 == 1 {
				p = compressing
				textBody(body, random)
			} else {
				random.Read(body)
			}
			m := primitive.NewMessage(topic, body)
			m.WithProperty("number", strconv.Itoa(number))
			key := describe(strconv.Itoa(number), body)
			m.WithKeys([]string{key})
			mutex.Lock()
			waiting[key] = true
			mutex.Unlock()
			send(p, m)
			total += size
			number++
		}
	}
	await("all bodies to arrive", 120*time.Second, func() bool {
		mutex.Lock()
		defer mutex.Unlock()
		return len(waiting) == 0 || len(faults) > 0
	})
	mutex.Lock()
	check(len(faults) == 0, "%d bodies differ, such as %q", len(faults), faults)
	mutex.Unlock()

	// This client lets every size through. A broker may store an empty body, which then arrives, or refuse it as
	// RocketMQ 5 does; it refuses one that is too large.
	empty := primitive.NewMessage(topic, nil)
	key := describe("empty", nil)
	empty.WithProperty("number", "empty")
	empty.WithKeys([]string{key})
	mutex.Lock()
	waiting[key] = true
	mutex.Unlock()
	if result, err := plain.SendSync(context.Background(), empty); err == nil && result.Status == primitive.SendOK {
		await("the empty body to arrive", 30*time.Second, func() bool {
			mutex.Lock()
			defer mutex.Unlock()
			return len(waiting) == 0 || len(faults) > 0
		})
		mutex.Lock()
		check(len(faults) == 0, "the empty body differs: %q", faults)
		mutex.Unlock()
		e.note("an empty body is stored")
	} else {
		e.note("an empty body is refused")
	}
	result, err := plain.SendSync(context.Background(), primitive.NewMessage(topic, make([]byte, bodyMax+1)))
	check(err != nil || result.Status != primitive.SendOK, "a body of 4 MiB and one byte was taken: %v", result)
	e.note("%d messages, %d MB", number, total/1_000_000)
}

// describe names a message by number, size and checksum.
func describe(number string, body []byte) string {
	return fmt.Sprintf("n%s-size%d-crc%08x", number, len(body), crc32.ChecksumIEEE(body))
}

func textBody(body []byte, random *rand.Rand) {
	for i := range body {
		body[i] = "the quick brown fox "[i%20]
		if i%61 == 0 {
			body[i] = byte('A' + random.Intn(26))
		}
	}
}

// Tags, keys, property names and values of any script arrive as sent. The tag filter is not used: this client hashes a
// tag's UTF-8 bytes where RocketMQ hashes its UTF-16 units, so it selects nothing by a tag beyond ASCII.
func utf8Properties(e *env) {
	topic := e.topic("t", 2)
	tag := "\u6807\u7b7e\u00e9"
	values := []string{"\u4e2d\u6587\u5c5e\u6027", "\u043a\u043b\u044e\u0447 \u0438 \u0437\u043d\u0430\u0447\u0435\u043d\u0438\u0435",
		"\U0001f680 beyond the basic plane", "\u0627\u0644\u0639\u0631\u0628\u064a\u0629", "quote \" backslash \\ slash / tab \t line \n end", "{\"json\":[1,2]}", "\u00fcml\u00e4ut"}
	p := e.producer()
	for i, value := range values {
		m := message(topic, value)
		m.WithTag(tag)
		m.WithKeys([]string{fmt.Sprintf("\u952e%d", i), fmt.Sprintf("\u043a\u043b\u044e\u0447%d", i)})
		m.WithProperty("\u540d\u5b57", value)
		m.WithProperty("index", strconv.Itoa(i))
		send(p, m)
	}
	in := &inbox{}
	e.member(e.name("g"), topic, "*", in)
	in.awaitExactly(values, rebalanceLimit)
	for _, m := range in.all() {
		i, err := strconv.Atoi(m.GetProperty("index"))
		must(err, "reading an index")
		equal(values[i], m.GetProperty("\u540d\u5b57"), "property of message %d", i)
		equal(tag, m.GetTags(), "tag of message %d", i)
		equal(fmt.Sprintf("\u952e%d \u043a\u043b\u044e\u0447%d", i, i), m.GetKeys(), "keys of message %d", i)
	}
}
