// Package wire speaks RocketMQ's remoting protocol without a client: just frames.
//
// A frame is: total length (4 bytes, not counting itself), header length (4, the upper byte names the encoding, 0 for
// JSON), header, body. Requests of one connection may be answered in any order; `opaque` pairs them.
package wire

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"
)

// Request and response codes that we use.
const (
	SendMessage      = 10
	GetRouteByTopic  = 105
	Success          = 0
	version          = 479
	frameBytesMax    = 32 << 20
	handshakeTimeout = 3 * time.Second
)

// ErrClosed is what calls get whose connection went away.
var ErrClosed = errors.New("connection closed")

// Answer is a response frame.
type Answer struct {
	Code   int               `json:"code"`
	Opaque int32             `json:"opaque"`
	Flag   int               `json:"flag"`
	Remark string            `json:"remark"`
	Ext    map[string]string `json:"extFields"`
	Body   []byte            `json:"-"`
}

type request struct {
	Code     int               `json:"code"`
	Language string            `json:"language"`
	Version  int               `json:"version"`
	Opaque   int32             `json:"opaque"`
	Flag     int               `json:"flag"`
	Ext      map[string]string `json:"extFields,omitempty"`
}

// Conn is one connection; many requests may be in flight on it.
type Conn struct {
	socket net.Conn

	mutex   sync.Mutex
	opaque  int32
	waiting map[int32]func(Answer, error)
	fault   error
}

// Dial connects to a broker or name server.
func Dial(address string) (*Conn, error) {
	socket, err := net.DialTimeout("tcp", address, handshakeTimeout)
	if err != nil {
		return nil, err
	}
	conn := &Conn{socket: socket, waiting: map[int32]func(Answer, error){}}
	go conn.read()
	return conn, nil
}

// Close ends the connection; what is in flight gets ErrClosed.
func (c *Conn) Close() {
	c.fail(ErrClosed)
}

// Start sends a request. `done` is called once, from another goroutine: with the answer, or when the connection ends.
func (c *Conn) Start(code int, ext map[string]string, body []byte, done func(Answer, error)) {
	c.mutex.Lock()
	if c.fault != nil {
		fault := c.fault
		c.mutex.Unlock()
		done(Answer{}, fault)
		return
	}
	c.opaque++
	opaque := c.opaque
	c.waiting[opaque] = done
	frame := encode(request{Code: code, Language: "JAVA", Version: version, Opaque: opaque, Ext: ext}, body)
	_, err := c.socket.Write(frame)
	c.mutex.Unlock()
	if err != nil {
		c.fail(err)
	}
}

// Call sends a request and waits for its answer.
func (c *Conn) Call(code int, ext map[string]string, body []byte, timeout time.Duration) (Answer, error) {
	type outcome struct {
		answer Answer
		err    error
	}
	answered := make(chan outcome, 1)
	c.Start(code, ext, body, func(answer Answer, err error) { answered <- outcome{answer, err} })
	select {
	case o := <-answered:
		return o.answer, o.err
	case <-time.After(timeout):
		return Answer{}, fmt.Errorf("no answer to request %d within %v", code, timeout)
	}
}

func encode(header request, body []byte) []byte {
	text, err := json.Marshal(header)
	if err != nil {
		panic(err) // strings and numbers always have a JSON form
	}
	frame := make([]byte, 8, 8+len(text)+len(body))
	binary.BigEndian.PutUint32(frame[0:], uint32(4+len(text)+len(body)))
	binary.BigEndian.PutUint32(frame[4:], uint32(len(text)))
	frame = append(frame, text...)
	return append(frame, body...)
}

func (c *Conn) read() {
	in := bufio.NewReaderSize(c.socket, 64<<10)
	for {
		answer, err := decode(in)
		if err != nil {
			c.fail(err)
			return
		}
		if answer.Flag&1 == 0 {
			continue // a request of the broker's own
		}
		c.mutex.Lock()
		done := c.waiting[answer.Opaque]
		delete(c.waiting, answer.Opaque)
		c.mutex.Unlock()
		if done != nil {
			done(answer, nil)
		}
	}
}

func decode(in io.Reader) (Answer, error) {
	var lengths [8]byte
	if _, err := io.ReadFull(in, lengths[:]); err != nil {
		return Answer{}, err
	}
	total := binary.BigEndian.Uint32(lengths[0:])
	packed := binary.BigEndian.Uint32(lengths[4:])
	headerLen := packed & 0xffffff
	if packed>>24 != 0 || total < 4+headerLen || total > frameBytesMax {
		return Answer{}, fmt.Errorf("a frame of length %d whose header word is %#x", total, packed)
	}
	rest := make([]byte, total-4)
	if _, err := io.ReadFull(in, rest); err != nil {
		return Answer{}, err
	}
	var answer Answer
	if err := json.Unmarshal(rest[:headerLen], &answer); err != nil {
		return Answer{}, err
	}
	answer.Body = rest[headerLen:]
	return answer, nil
}

func (c *Conn) fail(err error) {
	c.mutex.Lock()
	if c.fault == nil {
		c.fault = err
	}
	waiting := c.waiting
	c.waiting = map[int32]func(Answer, error){}
	c.mutex.Unlock()
	c.socket.Close()
	for _, done := range waiting {
		done(Answer{}, err)
	}
}

// Route is what a name server says about a topic.
type Route struct {
	Brokers []struct {
		Name      string            `json:"brokerName"`
		Addresses map[string]string `json:"brokerAddrs"`
	} `json:"brokerDatas"`
	Queues []struct {
		Broker string `json:"brokerName"`
		Writes int    `json:"writeQueueNums"`
	} `json:"queueDatas"`
}

// RouteOf asks a name server for a topic's route.
func RouteOf(namesrv, topic string) (Route, error) {
	conn, err := Dial(namesrv)
	if err != nil {
		return Route{}, err
	}
	defer conn.Close()
	answer, err := conn.Call(GetRouteByTopic, map[string]string{"topic": topic}, nil, handshakeTimeout)
	if err != nil {
		return Route{}, err
	}
	if answer.Code != Success {
		return Route{}, fmt.Errorf("the route of %s: code %d, %s", topic, answer.Code, answer.Remark)
	}
	var route Route
	if err := json.Unmarshal(answer.Body, &route); err != nil {
		return Route{}, fmt.Errorf("the route of %s: %w in %s", topic, err, answer.Body)
	}
	return route, nil
}
