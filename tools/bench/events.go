package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/event"
	"github.com/RelevanceAI/harvest/internal/engine/fake"
	"github.com/RelevanceAI/harvest/internal/fleet"
	"github.com/RelevanceAI/harvest/internal/server"
	"github.com/RelevanceAI/harvest/internal/store"
)

// fanOut is one stream with many readers.
type fanOut struct {
	dir      string
	clients  int
	events   int           // in total
	every    time.Duration // between two of them
	restarts int           // of the server, spread over the time
	cut      int           // a proxy breaks connections after a varying number of bytes, at most this; 0: no proxy
}

// outcome counts the events that the readers lost or received twice, and their connections.
type outcome struct {
	lost, twice int
	connections int
}

// broadcaster is the part of a server that events need.
type broadcaster struct {
	journal *event.Journal
	close   func() error
}

// broadcast serves the events of the database in dir on l.
func broadcast(ctx context.Context, dir string, l net.Listener) (*broadcaster, error) {
	db, err := store.Open(ctx, filepath.Join(dir, "harvest.db"))
	if err != nil {
		return nil, err
	}
	eng, err := fake.Open(dir, fake.Options{})
	if err != nil {
		return nil, errors.Join(err, db.Close())
	}
	fleet, err := fleet.Open(ctx, fleet.Options{Engine: eng, Store: db.Sandboxes()})
	if err != nil {
		return nil, errors.Join(err, eng.Close(), db.Close())
	}
	journal := event.Open(ctx, event.Options{Store: db.Events()})
	srv := server.New(ctx, server.Options{Fleet: fleet, Images: eng.Images(), Volumes: eng.Volumes(), Events: journal,
		Version: "bench"})
	served := make(chan error, 1)
	go func() { served <- srv.ServeLocal(l) }()
	return &broadcaster{journal, func() error {
		stopping, cancel := context.WithTimeout(ctx, 5*time.Second)
		defer cancel()
		srv.Stop(stopping)
		return errors.Join(srv.Close(), <-served, journal.Close(ctx), fleet.Close(ctx), eng.Close(), db.Close())
	}}, nil
}

// run publishes and reads. The server and the proxy are in this process. Clients connect over TCP.
func (f fanOut) run(ctx context.Context) (o outcome, err error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return o, errors.Wrapf(err, "listen")
	}
	address := l.Addr().String()
	b, err := broadcast(ctx, f.dir, l)
	if err != nil {
		return o, err
	}
	defer func() { err = errors.Join(err, b.close()) }()
	entrance := address
	if f.cut > 0 {
		proxy, failed := cut(ctx, address, f.cut)
		if failed != nil {
			return o, failed
		}
		defer func() { err = errors.Join(err, proxy.Close()) }()
		entrance = proxy.listener.Addr().String()
	}
	readers := make([]*eventReader, f.clients)
	var reading, ready sync.WaitGroup
	ready.Add(f.clients)
	limited, cancel := context.WithTimeout(ctx, 2*time.Minute+2*time.Duration(f.events)*f.every)
	defer cancel()
	for i := range readers {
		readers[i] = &eventReader{address: entrance, want: int64(f.events), ready: sync.OnceFunc(ready.Done)}
		reading.Go(func() { readers[i].run(limited) })
	}
	ready.Wait()
	tick := time.NewTicker(f.every)
	defer tick.Stop()
	for n := 1; n <= f.events; n++ {
		<-tick.C
		if f.restarts > 0 && n%(f.events/(f.restarts+1)) == 0 && n < f.events-1 {
			if b, err = restart(ctx, b, f.dir, address); err != nil {
				return o, err
			}
		}
		if err := publishTick(ctx, b.journal); err != nil {
			return o, err
		}
	}
	reading.Wait()
	for _, r := range readers {
		o.lost += f.events - int(r.last)
		o.lost += r.gaps
		o.twice += r.twice
		o.connections += r.connections
	}
	return o, nil
}

// restart closes the server and starts another one on the same records and address.
func restart(ctx context.Context, b *broadcaster, dir, address string) (*broadcaster, error) {
	if err := b.close(); err != nil {
		return b, err
	}
	var l net.Listener
	var err error
	for range 100 {
		if l, err = net.Listen("tcp", address); err == nil {
			return broadcast(ctx, dir, l)
		}
		if err := pause(ctx, 20*time.Millisecond); err != nil {
			return b, err
		}
	}
	return b, errors.Wrapf(err, "listen again")
}

// eventReader is a client that reconnects whenever its connection breaks. It decodes as little as possible,
// because 500 of them share the machine with the measured server.
type eventReader struct {
	address     string
	want        int64
	ready       func()
	last        int64
	gaps, twice int
	connections int
}

func (r *eventReader) run(ctx context.Context) {
	defer r.ready()
	for r.last < r.want && ctx.Err() == nil {
		if err := r.connect(ctx); err != nil { // the server is away, or the connection broke
			_ = pause(ctx, 20*time.Millisecond)
		}
	}
}

func (r *eventReader) connect(ctx context.Context) error {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", r.address)
	if err != nil {
		return err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	r.connections++
	if _, err := fmt.Fprintf(conn,
		"GET %s HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\nLast-Event-ID: %d\r\n\r\n", api.Events,
		r.last); err != nil {
		return err
	}
	resp, err := http.ReadResponse(bufio.NewReaderSize(conn, 8<<10), nil)
	if err != nil {
		return err
	}
	// The connection is closed, not the body: closing the body would read to its end.
	frames := bufio.NewScanner(resp.Body)
	frames.Buffer(make([]byte, 8<<10), 1<<20)
	frames.Split(splitFrames)
	r.ready()
	for r.last < r.want && frames.Scan() {
		r.frame(frames.Bytes())
	}
	return frames.Err()
}

// frame counts one event.
func (r *eventReader) frame(frame []byte) {
	text, ok := bytes.CutPrefix(frame, []byte("id: "))
	line, _, more := bytes.Cut(text, []byte("\n"))
	id, err := strconv.ParseInt(string(line), 10, 64)
	if !ok || !more || err != nil {
		return // a comment, or the start of the stream
	}
	switch {
	case id <= r.last:
		r.twice++
		return
	case id > r.last+1:
		r.gaps += int(id - r.last - 1)
	}
	r.last = id
}

func splitFrames(data []byte, atEOF bool) (advance int, token []byte, err error) {
	if i := bytes.Index(data, []byte("\n\n")); i >= 0 {
		return i + 2, data[:i], nil
	}
	return 0, nil, nil // ignore an incomplete last frame
}

// steady publishes to clients with lasting connections, in a process of their own. The processor times are in
// seconds. The server's is that of this process, which also publishes and persists.
func (f fanOut) steady(ctx context.Context) (h heard, server float64, err error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return h, 0, errors.Wrapf(err, "listen")
	}
	b, err := broadcast(ctx, f.dir, l)
	if err != nil {
		return h, 0, err
	}
	defer func() { err = errors.Join(err, b.close()) }()
	limited, cancel := context.WithTimeout(ctx, 2*time.Minute+2*time.Duration(f.events)*f.every)
	defer cancel()
	wait, err := listeners{Address: l.Addr().String(), Clients: f.clients, Want: int64(f.events)}.start(limited)
	if err != nil {
		return h, 0, err
	}
	begin := ownCPU()
	tick := time.NewTicker(f.every)
	defer tick.Stop()
	for range f.events {
		<-tick.C
		if err = publishTick(ctx, b.journal); err != nil {
			cancel()
			break
		}
	}
	h, failed := wait()
	return h, ownCPU() - begin, errors.Join(err, failed)
}

func publishTick(ctx context.Context, j *event.Journal) error {
	return j.Publish(ctx, event.Draft{Stream: event.AccountStream(personal), Type: "bench.tick",
		Data: map[string]int64{"at": time.Now().UnixNano()}})
}

// P10
func benchEvents(ctx context.Context, l *lab, r *recorder) error {
	seconds := r.count(2, 20)
	for _, clients := range []int{1, 500} {
		name := fmt.Sprintf("%d clients", clients)
		for turn := range r.count(1, 3) {
			f := fanOut{dir: filepath.Join(l.dir, fmt.Sprintf("events-%d-%d", clients, turn)), clients: clients,
				events: 1000 * seconds, every: time.Millisecond}
			if err := makeDir(f.dir); err != nil {
				return err
			}
			h, server, err := f.steady(ctx)
			if err != nil {
				return err
			}
			delivered := float64(f.events * clients)
			r.check(name+": none lost, none twice", h.Lost == 0 && h.Twice == 0,
				fmt.Sprintf("%d lost, %d twice, of %.0f", h.Lost, h.Twice, delivered))
			r.measure(name+": p50 from Publish until the client receives it", "ms").add(harvest, h.P50)
			p99 := r.measure(name+": p99 from Publish until the client receives it", "ms")
			if p99.add(harvest, h.P99); clients == 500 {
				p99.Aim = &Aim{AtMost: 10}
			}
			r.measure(name+": the server's CPU, of each second", "s").add(harvest, server/float64(seconds))
			r.measure(name+": the server's CPU for each event and client", "µs").add(harvest, server/delivered*1e6)
			r.measure(name+": the clients' CPU for each event", "µs").add(harvest, h.CPU/delivered*1e6)
			r.measure(name+": events that come together", "").add(harvest, delivered/float64(max(1, h.Reads)))
		}
	}
	f := fanOut{dir: filepath.Join(l.dir, "events-cut"), clients: 500, events: 1000 * seconds, every: time.Millisecond,
		restarts: 2, cut: 256 << 10}
	if err := makeDir(f.dir); err != nil {
		return err
	}
	o, err := f.run(ctx)
	if err != nil {
		return err
	}
	r.check("500 clients, cut and restarted: none lost, none twice", o.lost == 0 && o.twice == 0,
		fmt.Sprintf("%d lost, %d twice, of %d; %d connections", o.lost, o.twice, f.events*f.clients, o.connections))
	r.note("server with publisher, and clients, are two processes on the same cores; %d events in each", 1000*seconds)
	return nil
}
