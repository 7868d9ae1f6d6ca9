package main

import (
	"context"
	_ "embed"
	"fmt"
	"io"
	"net"
	"net/http"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/engine"
	"github.com/RelevanceAI/harvest/internal/engine/gateway/netstack"
	"github.com/RelevanceAI/harvest/internal/fleet"
	"github.com/RelevanceAI/harvest/internal/fleet/record"
	"github.com/RelevanceAI/harvest/internal/fleet/spec"
)

// The measures of the network row.
const (
	withCurl   = "download with curl"
	ofFile     = "curl of a file inside, without any network"
	inLarge    = "download, 1 MiB at a time"
	uploading  = "upload, 1 MiB at a time"
	connecting = "connect"
	holding    = "growth of the keeper's memory with 1,000 unread downloads"
)

// transferBytes is the size of one transfer, much more than all buffers on the way.
const transferBytes = 512 << 20

// networkScript is the client of transfers in Python.
//
//go:embed network.py
var networkScript string

// transfers are a sandbox and the server that its connections reach, on this machine's loopback interface.
type transfers struct {
	l       *lab
	sb      record.Sandbox
	address string // seen from the machine
	port    string
}

// benchNetwork measures the way through the gateway to a server of this machine, and the machine's own loopback
// as its peer.
func benchNetwork(ctx context.Context, l *lab, r *recorder) (err error) {
	if err := l.use(ctx, 0); err != nil {
		return err
	}
	address, closeServer, err := serveTransfers()
	if err != nil {
		return err
	}
	defer closeServer()
	t := &transfers{l: l, address: address}
	if _, t.port, err = net.SplitHostPort(address); err != nil {
		return errors.Wrapf(err, "serve transfers")
	}
	var destroy func() error
	t.sb, destroy, err = l.create(ctx, spec.Request{CPU: float64(runtime.NumCPU()), Memory: 2 * l.limits.Memory,
		Network: spec.Network{Mode: string(engine.NetworkAllow), Allow: []string{address}}})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, destroy()) }()
	if err := t.hold(ctx, r); err != nil { // first, while the keeper is small
		return err
	}
	if err := t.both(ctx, r, r.measure(withCurl, "MB/s"), &Aim{AtLeast: 500}, curl); err != nil {
		return err
	}
	if err := t.file(ctx, r); err != nil {
		return err
	}
	for _, m := range []struct {
		name, unit, what string
		aim              *Aim
	}{{inLarge, "MB/s", "download", nil}, {uploading, "MB/s", "upload", nil},
		{connecting, "ms", "connect", &Aim{AtMost: 1.5}}} {
		args := func(host, port string) []string {
			return []string{"python3", "-c", networkScript, m.what, host, port, strconv.Itoa(transferBytes)}
		}
		if err := t.both(ctx, r, r.measure(m.name, m.unit), m.aim, args); err != nil {
			return err
		}
	}
	return nil
}

// both measures the output of a command, in the sandbox and on the machine.
func (t *transfers) both(ctx context.Context, r *recorder, m *Measure, aim *Aim,
	args func(host, port string) []string) error {
	m.Aim = aim
	inside := side{harvest, func(ctx context.Context) (sample, error) {
		var out strings.Builder
		err := t.l.exec(ctx, t.sb.ID, fleet.ExecRequest{Args: args(netstack.IPv4().Gateway.String(), t.port),
			Stdout: &out})
		return figure(m, out.String(), err)
	}}
	outside := side{host, func(ctx context.Context) (sample, error) {
		a := args("127.0.0.1", t.port)
		cmd := exec.CommandContext(ctx, a[0], a[1:]...)
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		out, err := cmd.Output()
		return figure(m, string(out), err)
	}}
	return r.turns(ctx, r.count(2, 10), []*Measure{m}, inside, outside)
}

// file measures curl without any network: no download with curl in a sandbox can be faster.
func (t *transfers) file(ctx context.Context, r *recorder) error {
	const name = "/var/tmp/transfer"
	if err := t.l.exec(ctx, t.sb.ID,
		fleet.ExecRequest{Args: []string{"truncate", "-s", strconv.Itoa(transferBytes), name}}); err != nil {
		return err
	}
	m := r.measure(ofFile, "MB/s")
	return r.turns(ctx, r.count(2, 10), []*Measure{m}, side{harvest, func(ctx context.Context) (sample, error) {
		var out strings.Builder
		err := t.l.exec(ctx, t.sb.ID, fleet.ExecRequest{Args: curlTo("file://" + name), Stdout: &out})
		return figure(m, out.String(), err)
	}})
}

// hold measures the cost of 1,000 connections to a sandbox that does not read.
func (t *transfers) hold(ctx context.Context, r *recorder) error {
	keepers := family(func(cmdline string) bool {
		return strings.HasPrefix(cmdline, "harvest-keeper\x00") && strings.Contains(cmdline, t.sb.Handle.Ref)
	})
	if len(keepers) == 0 {
		return errors.Errorf("the keeper is not found")
	}
	m := r.measure(holding, "MiB")
	m.Aim = &Aim{AtMost: 200}
	growth, err := watchPeak(keepers[0])
	if err != nil {
		return err
	}
	in, end := io.Pipe()
	defer end.Close()
	var out locked
	const held = "1000"
	x, err := t.l.fleet.Exec(ctx, account, t.sb.ID, fleet.ExecRequest{Stdin: in, Stdout: &out,
		Args: []string{"python3", "-c", networkScript, "hold", netstack.IPv4().Gateway.String(), t.port, held}})
	if err != nil {
		return err
	}
	if !out.waitFor(ctx, held, 2*time.Minute) {
		return errors.Errorf("1,000 connections did not come about")
	}
	grown, err := growth()
	_ = end.Close()
	_, waited := x.Wait(ctx)
	if err := errors.Join(err, waited); err != nil {
		return err
	}
	m.add(harvest, grown)
	return nil
}

func curl(host, port string) []string { return curlTo("http://" + net.JoinHostPort(host, port) + "/") }

func curlTo(url string) []string {
	return []string{"curl", "-sS", "--noproxy", "*", "-o", "/dev/null", "-w", "%{speed_download}", url}
}

// figure parses the output of a command; curl prints bytes a second.
func figure(m *Measure, printed string, err error) (sample, error) {
	if err != nil {
		return nil, err
	}
	v, err := strconv.ParseFloat(strings.TrimSpace(printed), 64)
	if err != nil {
		return nil, errors.Errorf("%q is no figure", printed)
	}
	if m.Name == withCurl || m.Name == ofFile || m.Name == tlsDownload {
		v /= 1e6
	}
	return sample{m.Name: v}, nil
}

// serveTransfers serves downloads and accepts uploads on the loopback interface.
func serveTransfers() (address string, closeServer func(), err error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, errors.Wrapf(err, "serve transfers")
	}
	chunk := make([]byte, 1<<20)
	s := &http.Server{ReadHeaderTimeout: time.Minute,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			if req.Method == http.MethodPut {
				_, _ = io.CopyBuffer(struct{ io.Writer }{io.Discard}, struct{ io.Reader }{req.Body}, make([]byte, 1<<20))
				return
			}
			w.Header().Set("Content-Length", fmt.Sprint(transferBytes))
			for range transferBytes / len(chunk) {
				if _, err := w.Write(chunk); err != nil {
					return
				}
			}
		})}
	go func() { _ = s.Serve(l) }()
	return l.Addr().String(), func() { _ = s.Close() }, nil
}
