package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/client/errors"
)

// The clients of P10 whose latency is measured are a process of their own, so that they do not add to the
// server's processor time. The process does as little as possible: one thread waits for all connections and
// looks for numbers in the data.

// roleListeners is the role of that process. Its argument is a listeners.
const roleListeners = "listeners"

// listeners are clients that read one stream until they have Want events.
type listeners struct {
	Address string `json:"address"`
	Clients int    `json:"clients"`
	Want    int64  `json:"want"`
}

// heard is the listeners' result.
type heard struct {
	Lost  int     `json:"lost"`
	Twice int     `json:"twice"`
	P50   float64 `json:"p50"` // ms from Publish until a client received it
	P99   float64 `json:"p99"`
	CPU   float64 `json:"cpu"`   // seconds, of this process
	Reads int     `json:"reads"` // reads that returned data
}

// Latencies are counted in steps of waitStep ms. The last step also counts all longer ones.
const (
	waitStep  = 0.01
	waitSteps = 1_000_000
)

// listener is one connection.
type listener struct {
	fd   int
	last int64
	rest []byte // an incomplete frame
}

// start runs l in a process of its own and returns when all clients are connected. wait returns their results.
func (l listeners) start(ctx context.Context) (wait func() (heard, error), err error) {
	program, err := os.Executable()
	if err != nil {
		return nil, errors.Wrapf(err, "find this program")
	}
	spec, err := json.Marshal(l)
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, program, roleListeners, string(spec))
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, errors.Wrapf(err, "start the clients")
	}
	lines := bufio.NewReader(out)
	if _, err := lines.ReadString('\n'); err != nil {
		return nil, errors.Join(errors.Wrapf(err, "wait for the clients"), cmd.Wait())
	}
	return func() (h heard, err error) {
		err = json.NewDecoder(lines).Decode(&h)
		return h, errors.Join(err, cmd.Wait())
	}, nil
}

// run is the main function of that process.
func (l listeners) run(ctx context.Context, out io.Writer) error {
	address, err := netip.ParseAddrPort(l.Address)
	if err != nil {
		return err
	}
	poll, err := unix.EpollCreate1(0)
	if err != nil {
		return errors.Wrapf(err, "wait for many connections")
	}
	defer unix.Close(poll)
	all := make([]*listener, l.Clients)
	for i := range all {
		if all[i], err = listen(address); err != nil {
			return err
		}
		defer unix.Close(all[i].fd)
		if err := unix.EpollCtl(poll, unix.EPOLL_CTL_ADD, all[i].fd,
			&unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(i)}); err != nil {
			return errors.Wrapf(err, "wait for a connection")
		}
	}
	fmt.Fprintln(out, "ready")
	h, err := l.listen(ctx, poll, all)
	if err != nil {
		return err
	}
	return json.NewEncoder(out).Encode(h)
}

// listen connects and reads the header of the answer.
func listen(address netip.AddrPort) (*listener, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, errors.Wrapf(err, "make a socket")
	}
	if err := unix.Connect(fd, &unix.SockaddrInet4{Port: int(address.Port()), Addr: address.Addr().As4()}); err != nil {
		return nil, errors.Wrapf(err, "connect")
	}
	if _, err := unix.Write(fd, fmt.Appendf(nil,
		"GET %s HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n\r\n", api.Events)); err != nil {
		return nil, errors.Wrapf(err, "ask for events")
	}
	buf, head := make([]byte, 4096), []byte(nil)
	for !bytes.Contains(head, []byte("id: 0\n\n")) {
		n, err := unix.Read(fd, buf)
		if err != nil || n == 0 {
			return nil, errors.Errorf("read the head: %d, %v, after %q", n, err, head)
		}
		head = append(head, buf[:n]...)
	}
	return &listener{fd: fd}, errors.Wrapf(unix.SetNonblock(fd, true), "read without waiting")
}

// listen reads until each client has its events, or ctx ends.
func (l listeners) listen(ctx context.Context, poll int, all []*listener) (h heard, err error) {
	begin := ownCPU()
	waits, count, open := make([]uint32, waitSteps), 0, len(all)
	events, buf := make([]unix.EpollEvent, 256), make([]byte, 64<<10)
	for open > 0 && ctx.Err() == nil {
		n, err := unix.EpollWait(poll, events, 1000)
		if err != nil && err != unix.EINTR {
			return h, errors.Wrapf(err, "wait for events")
		}
		for _, e := range events[:max(0, n)] {
			one := all[e.Fd]
			n, err := unix.Read(one.fd, buf)
			if err == unix.EAGAIN || err == unix.EINTR {
				continue
			}
			if err != nil || n == 0 {
				return h, errors.Errorf("a connection ended after %d events: %v", one.last, err)
			}
			h.Reads++
			now, before := time.Now().UnixNano(), one.last
			one.take(buf[:n], func(id, at int64) {
				switch {
				case id <= one.last:
					h.Twice++
					return
				case id > one.last+1:
					h.Lost += int(id - one.last - 1)
				}
				one.last = id
				waits[min(waitSteps-1, max(0, int(float64(now-at)/1e6/waitStep)))]++
				count++
			})
			if before < l.Want && one.last >= l.Want {
				open--
			}
		}
	}
	for _, one := range all {
		h.Lost += int(l.Want - one.last)
	}
	h.CPU = ownCPU() - begin
	h.P50, h.P99 = waitAt(waits, count, 50), waitAt(waits, count, 99)
	return h, nil
}

// take calls got for each event in the data that was read. It keeps an incomplete frame for the next call.
func (one *listener) take(data []byte, got func(id, at int64)) {
	if len(one.rest) > 0 {
		data = append(one.rest, data...)
	}
	for {
		end := bytes.Index(data, []byte("}\n\n"))
		if end < 0 {
			break
		}
		frame := data[:end]
		data = data[end+3:]
		_, frame, _ = bytes.Cut(frame, []byte("id: ")) // sizes of chunks come before it
		number, _, _ := bytes.Cut(frame, []byte("\n"))
		_, at, _ := bytes.Cut(frame, []byte(`"at":`))
		id, err := strconv.ParseInt(string(number), 10, 64)
		ns, wrong := strconv.ParseInt(string(at), 10, 64)
		if err == nil && wrong == nil {
			got(id, ns)
		}
	}
	one.rest = append([]byte(nil), data...)
}

// waitAt returns a percentile of the counted latencies.
func waitAt(waits []uint32, count int, p float64) float64 {
	left := int(float64(count)*p/100 + 0.999999)
	for i, n := range waits {
		if left -= int(n); left <= 0 && count > 0 {
			return float64(i+1) * waitStep
		}
	}
	return 0
}

// ownCPU returns the processor time of this process, in seconds.
func ownCPU() float64 {
	var r unix.Rusage
	if unix.Getrusage(unix.RUSAGE_SELF, &r) != nil {
		return 0
	}
	return float64(r.Utime.Nano()+r.Stime.Nano()) / 1e9
}
