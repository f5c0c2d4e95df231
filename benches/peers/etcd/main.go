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
	recipe "go.etcd.io/etcd/contrib/recipes"
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

// When the last call ended, since `begun`, and the longest time in which none did.
var begun = time.Now()
var last, gap int64

func ended() {
	now := time.Since(begun).Nanoseconds()
	before := atomic.SwapInt64(&last, now)
	for longest := atomic.LoadInt64(&gap); before > 0 && now-before > longest; longest = atomic.LoadInt64(&gap) {
		if atomic.CompareAndSwapInt64(&gap, longest, now-before) {
			break
		}
	}
}

// A call that does not count.
const none time.Duration = -1

// One call of a client; returns its latency.
type call func(client int, c *clientv3.Client, sequence int64) (time.Duration, error)

// `clients` connections with `out` goroutines each, of which each has one call outstanding.
func clients(row string, o options, run call, handoffs []latencies) {
	count, out := o.number("clients", 1), o.number("out", 1)
	atomic.StoreInt32(&phase, warm)
	last, gap = 0, 0
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
					} else if atomic.LoadInt32(&phase) == timed && took != none {
						each[at] = append(each[at], took)
						if out > 1 {
							ended()
						}
					}
				}
			}(i, i*out+j)
		}
	}
	time.Sleep(o.duration("warm", 2))
	start := time.Now()
	atomic.StoreInt32(&phase, timed)
	time.Sleep(o.duration("secs", 6))
	atomic.StoreInt32(&phase, over)
	seconds := time.Since(start).Seconds()
	all.Wait()
	f := fields{"errors": errors}
	if gap > 0 {
		f["gap_ms"] = float64(gap) / 1e6
	}
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
		// The first client sets a large value, which does not count.
		large := strings.Repeat("x", o.number("beside", 0))
		many := int64(o.number("keys", 0))
		clients(row, o, func(client int, c *clientv3.Client, sequence int64) (time.Duration, error) {
			path := key(sequence)
			if many > 0 {
				// A step through all of them that looks random: their number is not a multiple of it.
				path = child(o["path"], sequence*61803%many)
			}
			if large != "" && client == 0 {
				_, err := c.Put(bg, key(sequence%16), large)
				return none, err
			}
			begun := time.Now()
			_, err := c.Put(bg, path, data)
			return time.Since(begun), err
		}, nil)
	case "client", "get":
		clients(row, o, func(client int, c *clientv3.Client, sequence int64) (time.Duration, error) {
			begun := time.Now()
			err := get(o, c, key(sequence))
			return time.Since(begun), err
		}, nil)
	case "mix": // seven of ten are gets
		clients(row, o, func(client int, c *clientv3.Client, sequence int64) (time.Duration, error) {
			begun := time.Now()
			var err error
			if sequence%10 < 7 {
				err = get(o, c, key(sequence))
			} else {
				_, err = c.Put(bg, key(sequence), data)
			}
			return time.Since(begun), err
		}, nil)
	case "fill":
		fill(o["path"], int64(o.number("keys", 1)), data)
	case "list":
		clients(row, o, func(client int, c *clientv3.Client, sequence int64) (time.Duration, error) {
			begun := time.Now()
			_, err := c.Get(bg, o["path"]+"/", clientv3.WithPrefix(), clientv3.WithKeysOnly(), clientv3.WithSerializable())
			return time.Since(begun), err
		}, nil)
	case "queue": // of etcd's own recipes: half of the clients put, and the others take
		clients(row, o, func(client int, c *clientv3.Client, sequence int64) (time.Duration, error) {
			queue := recipe.NewQueue(c, "/bench/"+row)
			begun := time.Now()
			if client%2 == 0 {
				return none, queue.Enqueue(data)
			}
			_, err := queue.Dequeue()
			return time.Since(begun), err
		}, nil)
	case "fanout":
		fanOut(row, o.number("rounds", 100), o.number("sessions", 1000), data)
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

func child(parent string, i int64) string { return fmt.Sprintf("%s/%05d", parent, i) }

// From the server's own state; with `linear`, no older than the call.
func get(o options, c *clientv3.Client, path string) error {
	var how []clientv3.OpOption
	if o.number("linear", 0) == 0 {
		how = append(how, clientv3.WithSerializable())
	}
	_, err := c.Get(bg, path, how...)
	return err
}

// So many keys below a parent, many at a time.
func fill(parent string, keys int64, data string) {
	c := connect(servers[0])
	defer c.Close()
	var next int64 = -1
	var all sync.WaitGroup
	for i := 0; i < 256; i++ {
		all.Add(1)
		go func() {
			defer all.Done()
			for i := atomic.AddInt64(&next, 1); i < keys; i = atomic.AddInt64(&next, 1) {
				if _, err := c.Put(bg, child(parent, i), data); err != nil {
					panic(err)
				}
			}
		}()
	}
	all.Wait()
}

// A set at the leader, and the last of the events at so many watchers of all servers.
func fanOut(row string, rounds, watchers int, data string) {
	setter := connect(servers[0])
	defer setter.Close()
	seen := make(chan time.Time, watchers)
	for i := 0; i < watchers; i++ {
		c := connect(servers[i%len(servers)])
		defer c.Close()
		events := c.Watch(bg, key(0), clientv3.WithCreatedNotify())
		<-events
		go func() {
			for range events {
				seen <- time.Now()
			}
		}()
	}
	var each latencies
	for i := 0; i < rounds; i++ {
		begun := time.Now()
		if _, err := setter.Put(bg, key(0), data); err != nil {
			panic(err)
		}
		at := begun
		for j := 0; j < watchers; j++ {
			select {
			case event := <-seen:
				if event.After(at) {
					at = event
				}
			case <-time.After(10 * time.Second):
				panic("event lost")
			}
		}
		if i >= rounds/3 {
			each = append(each, at.Sub(begun))
		}
	}
	f := fields{}
	f.percentiles("", []latencies{each})
	f.print(row)
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
