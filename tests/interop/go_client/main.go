// The stock Go client against a broker: one flow after the other, a line "ok <flow>" for each that came to its end.
//
//	flows NAMESRV FLOW...
package main

import (
	"context"
	"fmt"
	"os"
	"sort"
	"strings"
	"sync"
	"time"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
	"github.com/apache/rocketmq-client-go/v2/rlog"
)

const patience = 60 * time.Second

var namesrv []string

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func fail(format string, arguments ...any) {
	fmt.Fprintf(os.Stderr, format+"\n", arguments...)
	os.Exit(1)
}

func newProducer(group string) rocketmq.Producer {
	p, err := rocketmq.NewProducer(producer.WithNameServer(namesrv), producer.WithGroupName(group), producer.WithRetry(2))
	check(err)
	check(p.Start())
	return p
}

// seen collects bodies until as many are there as a flow wants.
type seen struct {
	sync.Mutex
	bodies []string
	times  map[string]int32
}

func (s *seen) add(m *primitive.MessageExt) {
	s.Lock()
	defer s.Unlock()
	s.bodies = append(s.bodies, string(m.Body))
	if s.times == nil {
		s.times = map[string]int32{}
	}
	s.times[string(m.Body)] = m.ReconsumeTimes
}

func (s *seen) wait(want int) []string {
	end := time.Now().Add(patience)
	for time.Now().Before(end) {
		s.Lock()
		found := append([]string{}, s.bodies...)
		s.Unlock()
		if len(found) >= want {
			return found
		}
		time.Sleep(20 * time.Millisecond)
	}
	fail("expected %d messages, found %v", want, s.bodies)
	return nil
}

func consume(group, topic string, selector consumer.MessageSelector, s *seen, options ...consumer.Option) rocketmq.PushConsumer {
	options = append(options, consumer.WithNameServer(namesrv), consumer.WithGroupName(group),
		consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset))
	c, err := rocketmq.NewPushConsumer(options...)
	check(err)
	check(c.Subscribe(topic, selector, func(_ context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
		for _, m := range messages {
			s.add(m)
		}
		return consumer.ConsumeSuccess, nil
	}))
	check(c.Start())
	return c
}

func equal(found, want []string) {
	sort.Strings(found)
	sort.Strings(want)
	if strings.Join(found, ",") != strings.Join(want, ",") {
		fail("expected %v, found %v", want, found)
	}
}

// send: sync, async, one-way and batch, all consumed once.
func send() {
	p := newProducer("go-send")
	var want []string
	for i := 0; i < 10; i++ {
		body := fmt.Sprintf("sync %d", i)
		want = append(want, body)
		m := primitive.NewMessage("GoSend", []byte(body)).WithTag("A").WithKeys([]string{fmt.Sprintf("key%d", i)})
		result, err := p.SendSync(context.Background(), m)
		check(err)
		if result.Status != primitive.SendOK || result.MsgID == "" {
			fail("send: %v", result)
		}
	}
	var wait sync.WaitGroup
	for i := 0; i < 10; i++ {
		body := fmt.Sprintf("async %d", i)
		want = append(want, body)
		wait.Add(1)
		check(p.SendAsync(context.Background(), func(_ context.Context, _ *primitive.SendResult, err error) {
			check(err)
			wait.Done()
		}, primitive.NewMessage("GoSend", []byte(body))))
	}
	wait.Wait()
	for i := 0; i < 5; i++ {
		body := fmt.Sprintf("oneway %d", i)
		want = append(want, body)
		check(p.SendOneWay(context.Background(), primitive.NewMessage("GoSend", []byte(body))))
	}
	var batch []*primitive.Message
	for i := 0; i < 5; i++ {
		body := fmt.Sprintf("batch %d", i)
		want = append(want, body)
		batch = append(batch, primitive.NewMessage("GoSend", []byte(body)))
	}
	_, err := p.SendSync(context.Background(), batch...)
	check(err)
	large := strings.Repeat("x", 200_000) // compressed by the client
	want = append(want, large)
	_, err = p.SendSync(context.Background(), primitive.NewMessage("GoSend", []byte(large)))
	check(err)
	var s seen
	c := consume("go-send-readers", "GoSend", consumer.MessageSelector{}, &s)
	equal(s.wait(len(want)), want)
	check(c.Shutdown())
	check(p.Shutdown())
}

// tags: the broker hands out what the expression asks for.
func tags() {
	p := newProducer("go-tags")
	for _, tag := range []string{"A", "B", "C", "A"} {
		_, err := p.SendSync(context.Background(), primitive.NewMessage("GoTags", []byte(tag)).WithTag(tag))
		check(err)
	}
	var s seen
	c := consume("go-tags-readers", "GoTags", consumer.MessageSelector{Type: consumer.TAG, Expression: "A || C"}, &s)
	equal(s.wait(3), []string{"A", "A", "C"})
	check(c.Shutdown())
	check(p.Shutdown())
}

// retry: a message that fails twice comes again, and is then done.
func retry() {
	p := newProducer("go-retry")
	_, err := p.SendSync(context.Background(), primitive.NewMessage("GoRetry", []byte("again")))
	check(err)
	var s seen
	c, err := rocketmq.NewPushConsumer(consumer.WithNameServer(namesrv), consumer.WithGroupName("go-retry-readers"),
		consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset))
	check(err)
	check(c.Subscribe("GoRetry", consumer.MessageSelector{}, func(_ context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
		for _, m := range messages {
			s.add(m)
			if m.ReconsumeTimes < 2 {
				return consumer.ConsumeRetryLater, nil
			}
		}
		return consumer.ConsumeSuccess, nil
	}))
	check(c.Start())
	equal(s.wait(3), []string{"again", "again", "again"})
	check(c.Shutdown())
	check(p.Shutdown())
}

// delay: a message with a delay level comes later, not at once.
func delay() {
	p := newProducer("go-delay")
	began := time.Now()
	m := primitive.NewMessage("GoDelay", []byte("later"))
	m.WithDelayTimeLevel(2)
	_, err := p.SendSync(context.Background(), m)
	check(err)
	var s seen
	c := consume("go-delay-readers", "GoDelay", consumer.MessageSelector{}, &s)
	s.wait(1)
	if took := time.Since(began); took < 1900*time.Millisecond {
		fail("the message came after %v", took)
	}
	check(c.Shutdown())
	check(p.Shutdown())
}

// order: each queue's messages are consumed in their order.
func order() {
	p, err := rocketmq.NewProducer(producer.WithNameServer(namesrv), producer.WithGroupName("go-order"),
		producer.WithQueueSelector(producer.NewHashQueueSelector()))
	check(err)
	check(p.Start())
	for i := 0; i < 40; i++ {
		m := primitive.NewMessage("GoOrder", []byte(fmt.Sprintf("%d %02d", i%4, i)))
		m.WithShardingKey(fmt.Sprint(i % 4))
		_, err := p.SendSync(context.Background(), m)
		check(err)
	}
	var s seen
	c := consume("go-order-readers", "GoOrder", consumer.MessageSelector{}, &s, consumer.WithConsumerOrder(true))
	last := map[string]string{}
	for _, body := range s.wait(40) {
		key := body[:1]
		if body <= last[key] {
			fail("%s came behind %s", body, last[key])
		}
		last[key] = body
	}
	check(c.Shutdown())
	check(p.Shutdown())
}

type listener struct{}

func (listener) ExecuteLocalTransaction(m *primitive.Message) primitive.LocalTransactionState {
	switch string(m.Body) {
	case "commit":
		return primitive.CommitMessageState
	case "rollback":
		return primitive.RollbackMessageState
	}
	return primitive.UnknowState
}

func (listener) CheckLocalTransaction(m *primitive.MessageExt) primitive.LocalTransactionState {
	return primitive.CommitMessageState
}

// transaction: committed and checked messages come, a rolled back one never does.
func transaction() {
	p, err := rocketmq.NewTransactionProducer(listener{}, producer.WithNameServer(namesrv), producer.WithGroupName("go-transaction"))
	check(err)
	check(p.Start())
	for _, body := range []string{"commit", "rollback", "check"} {
		_, err := p.SendMessageInTransaction(context.Background(), primitive.NewMessage("GoTransaction", []byte(body)))
		check(err)
	}
	var s seen
	c := consume("go-transaction-readers", "GoTransaction", consumer.MessageSelector{}, &s)
	equal(s.wait(2), []string{"commit", "check"})
	check(c.Shutdown())
	check(p.Shutdown())
}

func main() {
	rlog.SetLogLevel("error")
	namesrv = []string{os.Args[1]}
	flows := map[string]func(){"send": send, "tags": tags, "retry": retry, "delay": delay, "order": order, "transaction": transaction}
	for _, name := range os.Args[2:] {
		flows[name]()
		fmt.Println("ok", name)
	}
}
