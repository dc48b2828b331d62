// The Go client on one row of make bench-client: NAMESRV ROW SECONDS COUNT GROUP.
package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
	"github.com/apache/rocketmq-client-go/v2/rlog"
)

const window = 1024

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func cpu() time.Duration {
	var used syscall.Rusage
	check(syscall.Getrusage(syscall.RUSAGE_SELF, &used))
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}

func show(count int64, took, used time.Duration) {
	fmt.Printf("{\"rate\": %.1f, \"cpu_us\": %.2f}\n", float64(count)/took.Seconds(), used.Seconds()*1e6/float64(count))
}

func produce(namesrv []string, row string, seconds float64) {
	p, err := rocketmq.NewProducer(producer.WithNameServer(namesrv), producer.WithGroupName("rival-go"))
	check(err)
	check(p.Start())
	_, err = p.SendSync(context.Background(), primitive.NewMessage("bench", make([]byte, 1024)))
	check(err)
	var done int64
	begin, used := time.Now(), cpu()
	end := begin.Add(time.Duration(seconds * 1e9))
	var all sync.WaitGroup
	switch row {
	case "C4":
		room := make(chan struct{}, window)
		for time.Now().Before(end) {
			room <- struct{}{}
			all.Add(1)
			err := p.SendAsync(context.Background(), func(_ context.Context, _ *primitive.SendResult, err error) {
				if err == nil {
					atomic.AddInt64(&done, 1)
				}
				<-room
				all.Done()
			}, primitive.NewMessage("bench", make([]byte, 1024)))
			check(err)
		}
	default:
		for i := 0; i < map[string]int{"C1": 1, "C2": 16, "C5 batch": 1}[row]; i++ {
			all.Add(1)
			go func() {
				defer all.Done()
				for time.Now().Before(end) {
					var err error
					if row == "C5 batch" {
						many := make([]*primitive.Message, 32)
						for i := range many {
							many[i] = primitive.NewMessage("bench", make([]byte, 100))
						}
						_, err = p.SendSync(context.Background(), many...)
						atomic.AddInt64(&done, 31)
					} else {
						_, err = p.SendSync(context.Background(), primitive.NewMessage("bench", make([]byte, 1024)))
					}
					check(err)
					atomic.AddInt64(&done, 1)
				}
			}()
		}
	}
	all.Wait()
	show(done, time.Since(begin), cpu()-used)
}

func consume(namesrv []string, group string, count int64, batch int) {
	var seen int64
	finished := make(chan struct{})
	c, err := rocketmq.NewPushConsumer(consumer.WithNameServer(namesrv), consumer.WithGroupName(group),
		consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset), consumer.WithConsumeMessageBatchMaxSize(batch))
	check(err)
	begin, used := time.Now(), cpu()
	check(c.Subscribe("filled", consumer.MessageSelector{}, func(_ context.Context, many ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
		now := atomic.AddInt64(&seen, int64(len(many)))
		if now >= count && now-int64(len(many)) < count {
			close(finished)
		}
		return consumer.ConsumeSuccess, nil
	}))
	check(c.Start())
	<-finished
	show(atomic.LoadInt64(&seen), time.Since(begin), cpu()-used)
}

func main() {
	rlog.SetLogLevel("error")
	namesrv, row := []string{os.Args[1]}, os.Args[2]
	seconds, err := strconv.ParseFloat(os.Args[3], 64)
	check(err)
	if row == "C7" || row == "C7 batch" {
		count, err := strconv.ParseInt(os.Args[4], 10, 64)
		check(err)
		consume(namesrv, os.Args[5], count, map[string]int{"C7": 1, "C7 batch": 32}[row])
	} else {
		produce(namesrv, row, seconds)
	}
	os.Exit(0)
}
