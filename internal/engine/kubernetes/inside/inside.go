// Package inside is the first process of a sandbox's pod. It opens the engine gvisor for one sandbox, and serves the
// sandbox with the agent of package pod.
package inside

import (
	"context"
	"encoding/json"
	"flag"
	"io"
	"net"
	"net/netip"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/logf"
	"github.com/RelevanceAI/harvest/internal/base/processes"
	"github.com/RelevanceAI/harvest/internal/engine"
	"github.com/RelevanceAI/harvest/internal/engine/gvisor"
	"github.com/RelevanceAI/harvest/internal/engine/gvisor/wire/mutual"
	"github.com/RelevanceAI/harvest/internal/engine/kubernetes/pod"
	"github.com/RelevanceAI/harvest/internal/engine/volume"
)

// options are the options of the command line. They contain no secrets: they are in the pod's description.
type options struct {
	data     string // directory of the engine
	imageDir string // directory of the images' files; pods of one node may share it
	programs string // directory of the programs keeper, sentry and tools
	listen   string
	config   pod.Config
}

// Run is the program of the pod, with the arguments args. It returns when the pod has no more work to do, or ctx ends.
func Run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) error {
	o, err := parse(args, stderr)
	if err != nil {
		return err
	}
	p := &process{options: o, booted: make(chan struct{})}
	asked := ctx
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	go processes.Reap(ctx)
	go p.boot(ctx)
	greeted := make(chan error, 1)
	go func() {
		greeted <- pod.Greetings(stdin, stdout, func(c mutual.Credentials) (string, error) {
			return p.identify(ctx, c)
		})
	}()
	select {
	case <-asked.Done():
		p.linger()
	case err = <-greeted: // the input of a pod stays open; this is a broken pod, or a test
	}
	cancel()
	return errors.Join(err, p.close(context.WithoutCancel(ctx)))
}

// linger lets the server save a sandbox that it has not ended.
func (p *process) linger() {
	p.mu.Lock()
	agent := p.agent
	p.mu.Unlock()
	if agent != nil {
		agent.Linger(p.config.Grace)
	}
}

func parse(args []string, stderr io.Writer) (options, error) {
	var o options
	flags := flag.NewFlagSet("pod", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.StringVar(&o.data, "data", "/data", "directory of the sandbox")
	flags.StringVar(&o.imageDir, "images", "", "directory of images; by default below the directory of the sandbox")
	flags.StringVar(&o.programs, "programs", "/harvest", "directory of the other programs")
	flags.StringVar(&o.listen, "listen", ":"+strconv.Itoa(pod.Port), "address for the server")
	node := flags.String("node", "", "addresses of the node, separated by commas")
	config := flags.String("config", "{}", "JSON of the sandbox's fixed properties")
	if err := flags.Parse(args); err != nil {
		return o, errors.Wrapf(err, "parse the arguments")
	}
	if o.imageDir == "" {
		o.imageDir = filepath.Join(o.data, "images")
	}
	if err := json.Unmarshal([]byte(*config), &o.config); err != nil {
		return o, errors.Wrapf(err, "parse the configuration")
	}
	for _, text := range strings.FieldsFunc(*node, func(r rune) bool { return r == ',' }) {
		addr, err := netip.ParseAddr(text)
		if err != nil {
			return o, errors.Wrapf(err, "parse the addresses of the node")
		}
		o.config.Hosts = append(o.config.Hosts, addr.Unmap())
	}
	return o, nil
}

// process is the running program.
type process struct {
	options
	booted  chan struct{} // closed when the fields up to failure are set
	engine  *gvisor.Engine
	volumes *volume.Local
	images  *pod.Images
	warm    engine.Warm
	failure error

	mu     sync.Mutex
	agent  *pod.Agent // nil before the first greeting; guarded by mu
	at     net.Addr   // guarded by mu
	served chan error // guarded by mu
}

// boot boots the warm sandbox.
func (p *process) boot(ctx context.Context) {
	defer close(p.booted)
	p.failure = p.open(ctx)
}

func (p *process) open(ctx context.Context) (err error) {
	if p.volumes, err = volume.OpenDir(filepath.Join(p.data, "volumes")); err != nil {
		return err
	}
	if p.images, err = pod.OpenImages(p.imageDir); err != nil {
		return err
	}
	program := func(name string) string { return filepath.Join(p.programs, name) }
	p.engine, err = gvisor.Open(ctx, gvisor.Options{Dir: p.data, Images: p.images, Volumes: p.volumes,
		Executable: program("keeper"), Sentry: program("sentry"), Tools: program("tools"), Platform: p.config.Platform,
		NoSetuid: p.config.NoSetuid, OutputBytes: p.config.OutputBytes, Hosts: p.config.Hosts})
	if err != nil {
		return err
	}
	p.warm, err = p.engine.Warm(ctx, p.config.Limits)
	return err
}

// identify gives the agent its credentials. The first ones start it.
func (p *process) identify(ctx context.Context, c mutual.Credentials) (string, error) {
	select {
	case <-p.booted:
	case <-ctx.Done():
		return "", errors.Wrapf(ctx.Err(), "boot the sandbox")
	}
	if p.failure != nil {
		return "", p.failure
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.agent != nil {
		return p.at.String(), p.agent.Identify(c)
	}
	inner, err := new(net.ListenConfig).Listen(ctx, "tcp", p.listen)
	if err != nil {
		return "", errors.Wrapf(err, "listen for the server")
	}
	l, err := mutual.Listen(inner, c)
	if err != nil {
		return "", errors.Join(err, inner.Close())
	}
	p.agent = pod.New(pod.Parts{Warm: p.warm, Images: p.images, Volumes: p.volumes,
		Notes: filepath.Join(p.data, "syncs"), Connect: func(ctx context.Context) (net.Conn, error) {
			return p.engine.Keeper(ctx, p.warm.Handle())
		}}, l)
	p.at, p.served = inner.Addr(), make(chan error, 1)
	go func() { p.served <- p.agent.Serve(ctx) }()
	return p.at.String(), nil
}

// close ends the sandbox, and releases everything. The end of a pod's first process would end the sandbox anyway.
func (p *process) close(ctx context.Context) error {
	<-p.booted
	p.mu.Lock()
	served := p.served
	p.mu.Unlock()
	if served != nil {
		if err := <-served; !errors.Is(err, net.ErrClosed) {
			logf.Warnf(ctx, "the agent ended: %v", err)
		}
	}
	var err error
	if p.engine != nil {
		err = errors.Join(destroyAll(ctx, p.engine), p.engine.Close())
	}
	if p.volumes != nil {
		err = errors.Join(err, p.volumes.Close())
	}
	return err
}

func destroyAll(ctx context.Context, e *gvisor.Engine) error {
	all, err := e.List(ctx)
	for _, h := range all {
		sandbox, openErr := e.Open(ctx, h)
		if openErr != nil {
			err = errors.Join(err, openErr)
			continue
		}
		err = errors.Join(err, sandbox.Destroy(ctx))
	}
	return err
}
