// The stock Go client against a broker: one flow after the other, a line "ok <flow>" for each that came to its end.
//
//	flows NAMESRV FLOW...
//	flows NAMESRV member TOPIC GROUP STRATEGY FILE
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

// steady: a producer and a consumer that go on while a test ends and starts servers. What was acknowledged is consumed.
func steady() {
	p := newProducer("go-steady")
	var s seen
	var acknowledged []string
	send := func(body string) bool {
		timeout, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		result, err := p.SendSync(timeout, primitive.NewMessage("GoSteady", []byte(body)))
		if err == nil && result.Status == primitive.SendOK {
			acknowledged = append(acknowledged, body)
			return true
		}
		return false
	}
	if !send("first") {
		fail("the first send failed")
	}
	c := consume("go-steady-readers", "GoSteady", consumer.MessageSelector{}, &s)
	failed, behind := 0, 0
	end := time.Now().Add(20 * time.Second)
	for i := 0; time.Now().Before(end); i++ {
		if i == 100 {
			fmt.Println("running")
		}
		if send(fmt.Sprintf("steady %d", i)) {
			behind++
		} else {
			failed++
			behind = 0
			time.Sleep(50 * time.Millisecond)
		}
		time.Sleep(5 * time.Millisecond)
	}
	if behind == 0 {
		fail("no send went through at the end")
	}
	for deadline := time.Now().Add(2 * patience); ; time.Sleep(50 * time.Millisecond) {
		s.Lock()
		missing := 0
		for _, body := range acknowledged {
			if _, there := s.times[body]; !there {
				missing++
			}
		}
		s.Unlock()
		if missing == 0 {
			break
		}
		if time.Now().After(deadline) {
			fail("%d of %d acknowledged messages were not consumed", missing, len(acknowledged))
		}
	}
	fmt.Printf("acknowledged %d failed %d\n", len(acknowledged), failed)
	check(c.Shutdown())
	check(p.Shutdown())
}

// rebalance: consumers of one group join and leave; all of them get messages, and none is lost.
func rebalance() {
	p := newProducer("go-rebalance")
	sent := 0
	send := func() {
		_, err := p.SendSync(context.Background(), primitive.NewMessage("GoRebalance", []byte(fmt.Sprintf("m%d", sent))))
		check(err)
		sent++
	}
	send()
	var all [3]seen
	var consumers []rocketmq.PushConsumer
	for i := range all {
		consumers = append(consumers, consume("go-rebalance-readers", "GoRebalance", consumer.MessageSelector{}, &all[i],
			consumer.WithInstance(fmt.Sprintf("member-%d", i))))
	}
	count := func(i int) int {
		all[i].Lock()
		defer all[i].Unlock()
		return len(all[i].bodies)
	}
	begin := func() (found [3]int) {
		for i := range all {
			found[i] = count(i)
		}
		return found
	}
	for end, before := time.Now().Add(2*patience), begin(); ; time.Sleep(20 * time.Millisecond) {
		send()
		now := begin()
		if now[0] > before[0] && now[1] > before[1] && now[2] > before[2] {
			break
		}
		if time.Now().After(end) {
			fail("expected messages for each of three members, found %v", now)
		}
	}
	check(consumers[1].Shutdown())
	for i := 0; i < 200; i++ {
		send()
	}
	unique := func() int {
		found := map[string]bool{}
		for i := range all {
			all[i].Lock()
			for _, body := range all[i].bodies {
				found[body] = true
			}
			all[i].Unlock()
		}
		return len(found)
	}
	for end := time.Now().Add(2 * patience); unique() < sent; time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			fail("%d of %d messages were consumed", unique(), sent)
		}
	}
	check(consumers[0].Shutdown())
	check(consumers[2].Shutdown())
	check(p.Shutdown())
}

// member: one member of a group that prints "queue body" of each message and stays until a file is there.
func member(topic, group, strategy, end string) {
	allocate := consumer.AllocateByAveragely
	if strategy == "AVG_BY_CIRCLE" {
		allocate = consumer.AllocateByAveragelyCircle
	}
	c, err := rocketmq.NewPushConsumer(consumer.WithNameServer(namesrv), consumer.WithGroupName(group),
		consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset), consumer.WithStrategy(allocate))
	check(err)
	check(c.Subscribe(topic, consumer.MessageSelector{}, func(_ context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
		for _, m := range messages {
			fmt.Println(m.Queue.QueueId, string(m.Body))
		}
		return consumer.ConsumeSuccess, nil
	}))
	check(c.Start())
	fmt.Println("started")
	for {
		if _, err := os.Stat(end); err == nil {
			break
		}
		time.Sleep(50 * time.Millisecond)
	}
	check(c.Shutdown())
	fmt.Println("ended")
}

func main() {
	rlog.SetLogLevel("error")
	namesrv = strings.Split(os.Args[1], ";")
	if os.Args[2] == "member" {
		member(os.Args[3], os.Args[4], os.Args[5], os.Args[6])
		return
	}
	flows := map[string]func(){"send": send, "tags": tags, "retry": retry, "delay": delay, "order": order, "transaction": transaction,
		"steady": steady, "rebalance": rebalance}
	for _, name := range os.Args[2:] {
		flows[name]()
		fmt.Println("ok", name)
	}
}
