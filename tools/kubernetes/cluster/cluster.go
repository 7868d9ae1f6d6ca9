// Package cluster builds the programs of a Kubernetes cluster, and runs a cluster of one node for tests.
//
// The API server and etcd listen on 127.0.0.1. All processes, those of pods too, are in one tree of cgroups, so that
// they can be found and killed after a test was killed. There is one cluster on a machine at a time.
package cluster

import (
	"bytes"
	"context"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/engine/kubernetes/podimage"
)

// Cluster is a running cluster.
type Cluster struct {
	Dir        string // of its data
	Kubeconfig string // of a user with all rights

	programs               string // directory of the programs
	api, etcd, etcdPeer    string // addresses
	controllers, scheduler string // addresses
	kubelet                int    // port
	lock                   *os.File
	processes              map[string]*process
	starts                 chan func() // functions for the thread whose end kills the components
}

// process is a running component.
type process struct {
	cmd    *exec.Cmd
	exited chan struct{} // closed when the process has been reaped
}

// readyTime is how long a component may take to become ready. It exceeds the needs of a busy machine.
const readyTime = 3 * time.Minute

// Start starts a cluster with the programs that Build returned. Its data is in dir, which must not exist: End removes
// it. Start first removes the leftovers of a cluster whose process was killed. It returns an error if another process
// has a cluster.
func Start(ctx context.Context, programs, dir string) (c *Cluster, err error) {
	if os.Geteuid() != 0 {
		return nil, errors.Remedy(errors.Newf(errors.Unsupported, "only root can start a cluster"), "run as root")
	}
	lock, err := take(ctx, dir)
	if err != nil {
		return nil, err
	}
	c = &Cluster{Dir: dir, programs: programs, lock: lock, processes: map[string]*process{},
		starts: make(chan func())}
	go c.serveStarts()
	defer func() {
		if err != nil {
			err = errors.Join(err, c.End(context.WithoutCancel(ctx)))
		}
	}()
	if err := c.prepare(ctx); err != nil {
		return nil, err
	}
	for _, p := range c.components() {
		if err := c.start(p); err != nil {
			return nil, err
		}
		if err := c.await(ctx, p.name); err != nil {
			return nil, err
		}
	}
	return c, c.importPause(ctx)
}

// importPause adds the image Pause to the node.
func (c *Cluster) importPause(ctx context.Context) error {
	var image bytes.Buffer
	err := podimage.Write(&image, Pause, []podimage.File{{Name: "pause", Path: filepath.Join(c.programs, "pause")}})
	if err != nil {
		return err
	}
	return c.Import(ctx, &image)
}

// prepare makes all that the components find when they start.
func (c *Cluster) prepare(ctx context.Context) error {
	if err := os.Mkdir(c.Dir, 0o700); err != nil {
		return errors.Wrapf(err, "make the directory of the cluster")
	}
	for _, name := range []string{"etcd", "keys", "output", "kubelet", "containerd"} {
		if err := os.Mkdir(c.path(name), 0o700); err != nil {
			return errors.Wrapf(err, "make the directory of the cluster")
		}
	}
	if err := c.noteFixed(); err != nil {
		return err
	}
	if err := makeGroups(); err != nil {
		return err
	}
	if err := makeNodeBridge(ctx); err != nil {
		return err
	}
	for _, address := range []*string{&c.api, &c.etcd, &c.etcdPeer, &c.controllers, &c.scheduler} {
		free, _, err := freePort("127.0.0.1")
		if err != nil {
			return err
		}
		*address = free
	}
	var err error
	if _, c.kubelet, err = freePort(nodeAddress); err != nil {
		return err
	}
	c.Kubeconfig = c.path("keys/admin.kubeconfig")
	return c.configure()
}

// path returns the path of a file of the cluster.
func (c *Cluster) path(name string) string { return filepath.Join(c.Dir, name) }

// serveStarts starts the components on one thread, because the kernel kills them when the thread ends that started
// them.
func (c *Cluster) serveStarts() {
	runtime.LockOSThread()
	for f := range c.starts {
		f()
	}
}

// start starts a component.
func (c *Cluster) start(p component) error {
	output, err := os.OpenFile(c.path("output/"+p.name), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return errors.Wrapf(err, "open the output of %s", p.name)
	}
	defer output.Close()
	joined, err := os.Open(processGroup())
	if err != nil {
		return errors.Wrapf(err, "open the cgroup of the cluster")
	}
	defer joined.Close()
	cmd := exec.Command(filepath.Join(c.programs, p.name), p.args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = c.Dir, output, output
	cmd.Env = []string{"PATH=" + c.programs + ":/usr/sbin:/usr/bin:/sbin:/bin", "TMPDIR=" + c.Dir}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL, UseCgroupFD: true,
		CgroupFD: int(joined.Fd())}
	started := make(chan error)
	c.starts <- func() { started <- cmd.Start() }
	if err := <-started; err != nil {
		return errors.Wrapf(err, "start %s", p.name)
	}
	running := &process{cmd, make(chan struct{})}
	go func() {
		_ = cmd.Wait() // await reads the output of a process that has ended
		close(running.exited)
	}()
	c.processes[p.name] = running
	return nil
}

// await waits until a component answers.
func (c *Cluster) await(ctx context.Context, name string) error {
	ctx, cancel := context.WithTimeout(ctx, readyTime)
	defer cancel()
	for {
		err := c.ask(ctx, name)
		if err == nil {
			return nil
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-c.processes[name].exited:
			return errors.Errorf("%s has ended: %s", name, c.Output(name))
		case <-ctx.Done():
			return errors.Wrapf(err, "%s is not ready; its output: %s", name, c.Output(name))
		}
	}
}

// ask returns nil if the component is ready.
func (c *Cluster) ask(ctx context.Context, name string) error {
	switch name {
	case "etcd":
		return dial(ctx, "tcp", c.etcd)
	case "kube-apiserver":
		_, err := c.Kubectl(ctx, nil, "get", "--raw", "/readyz")
		return err
	case "containerd":
		return dial(ctx, "unix", c.path("containerd.sock"))
	case "kubelet":
		ready, err := c.Kubectl(ctx, nil, "get", "node", Node, "-o",
			`jsonpath={.status.conditions[?(@.type=="Ready")].status}`)
		if err == nil && ready != "True" {
			err = errors.Errorf("the node is not ready: %q", ready)
		}
		return err
	default: // the scheduler and the controllers: their work shows whether they are ready
		return nil
	}
}

func dial(ctx context.Context, network, address string) error {
	conn, err := new(net.Dialer).DialContext(ctx, network, address)
	if err != nil {
		return errors.Wrapf(err, "connect to %s", address)
	}
	return errors.Wrapf(conn.Close(), "close a connection")
}

// Output returns the end of a component's output.
func (c *Cluster) Output(name string) string {
	const most = 4000
	b, err := os.ReadFile(c.path("output/" + name))
	if err != nil {
		return err.Error()
	}
	return string(b[max(0, len(b)-most):])
}

// Kubectl runs kubectl with all rights, and returns its standard output. stdin may be nil.
func (c *Cluster) Kubectl(ctx context.Context, stdin io.Reader, args ...string) (string, error) {
	return c.run(ctx, stdin, "kubectl", append([]string{"--kubeconfig", c.Kubeconfig}, args...)...)
}

// Pause is the image of each pod's first container, which does nothing. Kubernetes' own is not on the machine.
const Pause = "harvest.test/pause:1"

// Socket is containerd's, for ctr.
func (c *Cluster) Socket() string { return c.path("containerd.sock") }

// Import adds the images of an archive, as docker save writes it, to the node.
func (c *Cluster) Import(ctx context.Context, archive io.Reader) error {
	_, err := c.run(ctx, archive, "ctr", "--address", c.Socket(), "--namespace", "k8s.io", "images",
		"import", "-")
	return err
}

func (c *Cluster) run(ctx context.Context, stdin io.Reader, program string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, filepath.Join(c.programs, program), args...)
	var out, failure strings.Builder
	cmd.Stdin, cmd.Stdout, cmd.Stderr = stdin, &out, &failure
	cmd.Env = []string{"HOME=" + c.Dir, "PATH=/usr/bin:/bin"}
	err := cmd.Run()
	return out.String(), errors.Wrapf(err, "%s %s: %s", program, strings.Join(args, " "), failure.String())
}

// Kill kills a component with SIGKILL, and waits for its end.
func (c *Cluster) Kill(name string) error {
	p := c.processes[name]
	if p == nil {
		return errors.Errorf("there is no component %q", name)
	}
	err := p.cmd.Process.Kill()
	<-p.exited
	return errors.Wrapf(err, "kill %s", name)
}

// Restart starts a component that Kill has killed, and waits until it is ready.
func (c *Cluster) Restart(ctx context.Context, name string) error {
	for _, p := range c.components() {
		if p.name == name {
			if err := c.start(p); err != nil {
				return err
			}
			return c.await(ctx, name)
		}
	}
	return errors.Errorf("there is no component %q", name)
}

// End kills all processes of the cluster, and removes everything that the cluster has made on the machine.
func (c *Cluster) End(ctx context.Context) error {
	for _, p := range c.processes {
		_ = p.cmd.Process.Kill() // it may have ended
		<-p.exited
	}
	err := clean(ctx, c.Dir)
	close(c.starts)
	return errors.Join(err, c.lock.Truncate(0), c.lock.Close())
}

// freePort returns a free port of an address.
func freePort(host string) (address string, number int, err error) {
	listener, err := net.Listen("tcp", net.JoinHostPort(host, "0"))
	if err != nil {
		return "", 0, errors.Wrapf(err, "find a free port")
	}
	defer listener.Close()
	at, ok := listener.Addr().(*net.TCPAddr)
	if !ok {
		return "", 0, errors.Errorf("%v is not an address of TCP", listener.Addr())
	}
	return at.String(), at.Port, nil
}

// port returns the port of an address.
func port(address string) string {
	_, port, _ := net.SplitHostPort(address)
	return port
}
