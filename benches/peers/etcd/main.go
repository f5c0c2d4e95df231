// etcd's side of the comparison. Runs workloads one after the other, and prints one JSON line each.
//
//	etcd-client --servers HOST:PORT,... NAME[:KEY=VALUE]...
//
// The first server is the leader: on=leader is that one, on=follower the second, and otherwise clients are spread.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"sort"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/clientv3"
	"go.etcd.io/etcd/clientv3/concurrency"
	"go.uber.org/zap"
)

const keys = 1000

var servers []string
var bg = context.Background()

// ---- options, connections, figures ----

type options map[string]string

func (o options) number(key string, other int) int {
	if text, ok := o[key]; ok {
		n, err := strconv.Atoi(text)
		if err != nil {
			panic(err)
		}
		return n
	}
	return other
}

func (o options) duration(key string, other float64) time.Duration {
	if text, ok := o[key]; ok {
		n, err := strconv.ParseFloat(text, 64)
		if err != nil {
			panic(err)
		}
		other = n
	}
	return time.Duration(other * 1e9)
}

func (o options) server(client int) string {
	switch o["on"] {
	case "leader":
		return servers[0]
	case "follower":
		return servers[1]
	}
	return servers[client%len(servers)]
}

func key(i int64) string { return fmt.Sprintf("/bench/k/%04d", i%keys) }

var quiet = zap.Config{Level: zap.NewAtomicLevelAt(zap.FatalLevel), Encoding: "json",
	OutputPaths: []string{"stderr"}, ErrorOutputPaths: []string{"stderr"}, EncoderConfig: zap.NewProductionEncoderConfig()}

func connect(endpoints ...string) *clientv3.Client {
	c, err := clientv3.New(clientv3.Config{Endpoints: endpoints, DialTimeout: 10 * time.Second, LogConfig: &quiet})
	if err != nil {
		panic(err)
	}
	return c
}

type latencies []time.Duration

type fields map[string]interface{}

func (f fields) percentiles(prefix string, each []latencies) int {
	var all latencies
	for _, l := range each {
		all = append(all, l...)
	}
	sort.Slice(all, func(i, j int) bool { return all[i] < all[j] })
	for name, share := range map[string]float64{"p50": .5, "p99": .99, "p999": .999, "max": 1} {
		i := int(float64(len(all)) * share)
		if i >= len(all) {
			i = len(all) - 1
		}
		if i >= 0 {
			f[prefix+name+"_us"] = float64(all[i].Nanoseconds()) / 1e3
		}
	}
	return len(all)
}

func (f fields) print(row string) {
	f["row"] = row
	line, _ := json.Marshal(f)
	fmt.Println(string(line))
}

// ---- clients that call until the window is over ----

const (
	warm int32 = iota
	timed
	over
)

var phase int32

// One call of a client; returns its latency.
type call func(client int, c *clientv3.Client, sequence int64) (time.Duration, error)

// `clients` connections with `out` goroutines each, of which each has one call outstanding.
func clients(row string, o options, run call, handoffs []latencies) {
	count, out := o.number("clients", 1), o.number("out", 1)
	atomic.StoreInt32(&phase, warm)
	each := make([]latencies, count*out)
	var errors, sequence int64
	var all sync.WaitGroup
	for i := 0; i < count; i++ {
		c := connect(o.server(i))
		defer c.Close()
		for j := 0; j < out; j++ {
			all.Add(1)
			go func(client, at int) {
				defer all.Done()
				for atomic.LoadInt32(&phase) < over {
					took, err := run(client, c, atomic.AddInt64(&sequence, 1))
					if err != nil {
						if atomic.AddInt64(&errors, 1) < 4 {
							fmt.Fprintln(os.Stderr, row, err)
						}
					} else if atomic.LoadInt32(&phase) == timed {
						each[at] = append(each[at], took)
					}
				}
			}(i, i*out+j)
		}
	}
	time.Sleep(o.duration("warm", 2))
	begun := time.Now()
	atomic.StoreInt32(&phase, timed)
	time.Sleep(o.duration("secs", 6))
	atomic.StoreInt32(&phase, over)
	seconds := time.Since(begun).Seconds()
	all.Wait()
	f := fields{"errors": errors}
	f["ops_per_s"] = float64(f.percentiles("", each)) / seconds
	f.percentiles("handoff_", handoffs)
	f.print(row)
}

// ---- workloads ----

func run(name, row string, o options) {
	data := strings.Repeat("x", o.number("size", 100))
	switch name {
	case "init":
		c := connect(servers[0])
		defer c.Close()
		for i := int64(0); i < keys; i++ {
			if _, err := c.Put(bg, key(i), data); err != nil {
				panic(err)
			}
		}
	case "set":
		clients(row, o, func(client int, c *clientv3.Client, sequence int64) (time.Duration, error) {
			begun := time.Now()
			_, err := c.Put(bg, key(sequence), data)
			return time.Since(begun), err
		}, nil)
	case "watch":
		watch(row, o.number("rounds", 1000), data)
	case "lock":
		lock(row, o)
	case "session": // a lease, a key with it, and the end of the lease
		clients(row, o, func(client int, c *clientv3.Client, sequence int64) (time.Duration, error) {
			begun := time.Now()
			session, err := concurrency.NewSession(c, concurrency.WithTTL(30))
			if err != nil {
				return 0, err
			}
			path := "/bench/lock/e" + strconv.FormatInt(sequence, 10)
			if _, err = c.Put(bg, path, data, clientv3.WithLease(session.Lease())); err != nil {
				return 0, err
			}
			err = session.Close()
			return time.Since(begun), err
		}, nil)
	case "failover":
		failover(row, o, data)
	default:
		panic("no workload " + name)
	}
}

// Set at the leader, event at the last server.
func watch(row string, rounds int, data string) {
	setter, watcher := connect(servers[0]), connect(servers[len(servers)-1])
	defer setter.Close()
	defer watcher.Close()
	events := watcher.Watch(bg, key(0), clientv3.WithCreatedNotify())
	<-events
	var each latencies
	for i := 0; i < rounds; i++ {
		seen := make(chan time.Time, 1)
		go func() { <-events; seen <- time.Now() }()
		begun := time.Now()
		if _, err := setter.Put(bg, key(0), data); err != nil {
			panic(err)
		}
		select {
		case at := <-seen:
			if i >= rounds/3 { // the first third warms up
				each = append(each, at.Sub(begun))
			}
		case <-time.After(10 * time.Second):
			panic("event lost")
		}
	}
	f := fields{}
	f.percentiles("", []latencies{each})
	f.print(row)
}

// The mutex of etcd's own client library.
func lock(row string, o options) {
	count := o.number("clients", 1)
	handoffs, mutexes := make([]latencies, count), make([]*concurrency.Mutex, count)
	base := time.Now()
	var released, holders int64 // released: since base
	clients(row, o, func(client int, c *clientv3.Client, sequence int64) (time.Duration, error) {
		mutex := mutexes[client]
		if mutex == nil {
			session, err := concurrency.NewSession(c, concurrency.WithTTL(30))
			if err != nil {
				return 0, err
			}
			mutex = concurrency.NewMutex(session, "/bench/lock/"+row)
			mutexes[client] = mutex
		}
		begun := time.Now()
		if err := mutex.Lock(bg); err != nil {
			return 0, err
		}
		acquired := time.Now()
		if atomic.AddInt64(&holders, 1) != 1 {
			panic("two holders at once")
		}
		before := time.Duration(atomic.LoadInt64(&released))
		if before != 0 && atomic.LoadInt32(&phase) == timed {
			handoffs[client] = append(handoffs[client], acquired.Sub(base)-before)
		}
		atomic.AddInt64(&holders, -1)
		atomic.StoreInt64(&released, time.Since(base).Nanoseconds())
		return acquired.Sub(begun), mutex.Unlock(bg)
	}, handoffs)
}

// Writers at all servers; the leader, with the process id `pid`, is signalled while they write.
func failover(row string, o options, data string) {
	base := time.Now()
	var lock sync.Mutex
	var written []int64 // nanoseconds since base
	var last int64
	var stop int32
	for i := 0; i < o.number("clients", 8); i++ {
		var order []string
		for j := range servers {
			order = append(order, servers[(i+j)%len(servers)])
		}
		go func(c *clientv3.Client, path string) {
			for atomic.LoadInt32(&stop) == 0 {
				// A caller without a short time limit waits for a server that is gone: up to ten seconds.
				attempt, cancel := context.WithTimeout(bg, 100*time.Millisecond)
				_, err := c.Put(attempt, path, data)
				cancel()
				if err == nil {
					now := time.Since(base).Nanoseconds()
					lock.Lock()
					written = append(written, now)
					lock.Unlock()
					atomic.StoreInt64(&last, now)
				}
				time.Sleep(2 * time.Millisecond)
			}
		}(connect(order...), key(int64(i)))
	}
	time.Sleep(o.duration("before", 3))
	signalled := time.Since(base).Nanoseconds()
	if err := exec.Command("/bin/kill", "-"+o["signal"], o["pid"]).Run(); err != nil {
		panic(err)
	}
	// Until writes have gone on for two seconds, a minute at most.
	resumed := signalled
	for now := signalled; now-signalled < 60e9; now = time.Since(base).Nanoseconds() {
		time.Sleep(20 * time.Millisecond)
		if now-signalled < 1e9 || now-atomic.LoadInt64(&last) > 300e6 {
			resumed = now
		} else if now-resumed > 2e9 {
			break
		}
	}
	atomic.StoreInt32(&stop, 1)
	// Should nobody have written again, the gap lasts to the end.
	lock.Lock()
	times := append(written, time.Since(base).Nanoseconds())
	lock.Unlock()
	sort.Slice(times, func(i, j int) bool { return times[i] < times[j] })
	var gap int64
	for i := 1; i < len(times); i++ {
		if times[i] > signalled-100e6 && times[i]-times[i-1] > gap {
			gap = times[i] - times[i-1]
		}
	}
	fields{"gap_ms": float64(gap) / 1e6}.print(row)
}

func main() {
	servers = strings.Split(os.Args[2], ",")
	for _, workload := range os.Args[3:] {
		words := strings.Split(workload, ":")
		o := options{"row": words[0]}
		for _, pair := range words[1:] {
			p := strings.SplitN(pair, "=", 2)
			o[p[0]] = p[1]
		}
		func() {
			defer func() {
				if e := recover(); e != nil {
					fields{"failed": fmt.Sprint(e)}.print(o["row"])
				}
			}()
			run(words[0], o["row"], o)
		}()
	}
}
