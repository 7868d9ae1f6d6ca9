// Package keeper is the small process that owns one sandbox, of gVisor or a container, and the commands in it.
//
// The server starts one keeper per sandbox, and talks to it over a Unix socket (package wire). The keeper
// outlives the server, so that commands keep running and their output is kept while no server runs. The sandbox
// does not outlive the keeper. Because there is one keeper per sandbox, it does not link gVisor's kernel:
// packages runsc and layer send requests to gVisor's processes.
package keeper

import (
	"cmp"
	"encoding/json"
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	"github.com/moby/sys/user"
	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/log"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/client/transport/socket"
	"github.com/RelevanceAI/harvest/internal/base/atomicfile"
	"github.com/RelevanceAI/harvest/internal/base/privilege"
	"github.com/RelevanceAI/harvest/internal/engine"
	"github.com/RelevanceAI/harvest/internal/engine/gvisor/keeper/container"
	"github.com/RelevanceAI/harvest/internal/engine/gvisor/keeper/guest"
	"github.com/RelevanceAI/harvest/internal/engine/gvisor/keeper/kept"
	"github.com/RelevanceAI/harvest/internal/engine/gvisor/keeper/network"
	"github.com/RelevanceAI/harvest/internal/engine/gvisor/wire"
	"github.com/RelevanceAI/harvest/internal/engine/volume"
)

// Name is the first argument of a keeper's process.
const Name = "harvest-keeper"

// bootFD is the file descriptor of the connection to the server that started the keeper.
const bootFD = 3

// keeperGCPercent keeps an idle keeper small: after booting, it allocates little.
const keeperGCPercent = 50

// answerTime is how long this process waits at its end for clients that are still reading.
const answerTime = 200 * time.Millisecond

// Keeper owns one sandbox.
type Keeper struct {
	thread chan func() // functions for the main thread; gVisor's process dies with that thread
	tools  *os.File    // the program of the tools inside
	users  *os.File    // the lease of the sandbox's users, as long as this process runs; nil without
	inits  *os.File    // the other end of standard output, which gVisor's init programs share

	// image is held while the sandbox gets its image, also by a preparation. It is taken before mu.
	image sync.Mutex

	mu       sync.Mutex
	args     wire.BootArgs       // guarded by mu; Claim is set once claimed
	dirs     map[string]bool     // directories that commands have started in; guarded by mu
	sandbox  kept.Sandbox        // set by boot
	guest    *guest.Guest        // the sandbox if it is one of gVisor, else nil
	commands map[string]*command // guarded by mu
	order    []string            // IDs of commands, oldest first; guarded by mu
	started  int                 // number of commands ever started; guarded by mu
	oom      bool                // memory ran out; guarded by mu
	cpu      time.Duration       // highest processor time seen; guarded by mu
	destroy  bool                // Destroy was requested; guarded by mu
	booted   time.Time
	network  *network.Network
	relay    relay

	crashes crashes

	ended chan struct{} // closed when the sandbox has ended
	end   engine.End    // valid once ended is closed

	snapshot sync.Mutex // held during a snapshot
	// starting is held for reading while a command starts, and for writing during a checkpoint. It is taken
	// before all others.
	starting sync.RWMutex

	finished chan struct{} // closed when this process may end
	finish   func()        // closes finished, once
}

// Main runs a keeper and returns its exit code. It must be called on the process's main goroutine.
func Main() int {
	runtime.LockOSThread()
	// Signals from the server's terminal, such as SIGHUP and SIGINT, must not end the sandboxes.
	ignoreSignals()
	conn, err := net.FileConn(os.NewFile(bootFD, "boot"))
	if err != nil {
		return 1
	}
	k := &Keeper{network: network.New(), thread: make(chan func()), commands: map[string]*command{},
		dirs: map[string]bool{}, ended: make(chan struct{}), finished: make(chan struct{})}
	k.finish = sync.OnceFunc(func() { close(k.finished) })
	exit := make(chan int, 1)
	go func() { exit <- k.run(wire.NewConn(conn)) }()
	for {
		select {
		case f := <-k.thread:
			f()
		case code := <-exit:
			return code
		}
	}
}

// limitPrivileges gives up what the keeper does not use. In its own user namespace, it needs all its privileges, and
// they have no effect on this machine.
func limitPrivileges(container bool) error {
	owned, err := ownNamespace()
	if err != nil || owned {
		return err
	}
	keep := privilege.Keeper
	if container {
		keep = privilege.Container
	}
	if err := privilege.Keep(keep); !errors.Is(err, unix.ENOTSUP) {
		return err
	}
	return nil
}

// ownNamespace reports whether this process is in the user namespace that the server of an ordinary user makes for
// its keepers. It has one user.
func ownNamespace() (bool, error) {
	b, err := os.ReadFile("/proc/self/uid_map")
	return strings.HasSuffix(strings.TrimSpace(string(b)), " 1"), errors.Wrapf(err, "read uid_map")
}

// onThread runs f on the main thread and returns its error.
func (k *Keeper) onThread(f func() error) error {
	done := make(chan error, 1)
	k.thread <- func() { done <- f() }
	return <-done
}

// run serves the boot connection and then the socket, until the sandbox is destroyed.
func (k *Keeper) run(boot *wire.Conn) int {
	listener, err := k.boot(boot)
	if err != nil {
		_ = boot.SendJSON(wire.KindFailure, wire.FailureOf(err))
		return 1
	}
	var answers, accepting sync.WaitGroup
	accepting.Go(func() {
		for {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			answers.Go(func() { k.serve(wire.NewConn(c)) })
		}
	})
	_ = boot.SendJSON(wire.KindReply, wire.Reply{})
	_ = boot.Close()
	debug.SetGCPercent(keeperGCPercent) // it was off so far (keeperEnv of package gvisor)
	debug.FreeOSMemory()                // booting allocates more than anything later
	<-k.ended
	if !k.end.Destroyed {
		if err := k.release(); err != nil {
			log.Warningf("release: %v", err)
		}
		k.saveState()
	}
	<-k.finished // until Destroy, clients may still request the end and the output
	_ = listener.Close()
	accepting.Wait()
	answered := make(chan struct{})
	go func() {
		answers.Wait()
		close(answered)
	}()
	select {
	case <-answered:
	case <-time.After(answerTime):
	}
	return 0
}

// boot starts the sandbox that the first request describes.
func (k *Keeper) boot(conn *wire.Conn) (net.Listener, error) {
	req, err := receiveRequest(conn)
	if err != nil {
		return nil, err
	}
	if req.Op != wire.Boot || req.Boot == nil {
		return nil, errors.Errorf("the first request is %q", req.Op)
	}
	k.args, k.network.Hosts = *req.Boot, req.Boot.Hosts
	if err := limitPrivileges(k.args.Container != nil); err != nil {
		return nil, err
	}
	claim := k.args.Claim
	k.args.Claim = nil
	k.inherit(claim)
	defer claim.CloseFiles()
	stage := guest.StageClock(conn)
	if err := os.Chdir(k.args.Dir); err != nil {
		return nil, errors.Wrapf(err, "enter directory")
	}
	if err := os.Mkdir("empty", 0o755); err != nil && !os.IsExist(err) {
		return nil, errors.Wrapf(err, "create empty directory")
	}
	if err := logTo(guest.GVisorLog); err != nil {
		return nil, err
	}
	if k.tools, err = os.Open(cmp.Or(k.args.Tools, "/proc/self/exe")); err != nil {
		return nil, errors.Wrapf(err, "open the program that runs inside")
	}
	if err := k.listenToInits(); err != nil {
		return nil, err
	}
	stage("keeper")
	if k.args.Cgroup == "" {
		limitCPUs(k.args.Limits.CPU)
	}
	if err := k.begin(claim, stage); err != nil {
		return nil, err
	}
	listener, err := socket.Listen(k.args.Dir, wire.Socket)
	if err != nil {
		_ = k.onThread(k.sandbox.Destroy)
		return nil, errors.Wrapf(err, "listen")
	}
	k.saveState()
	go k.watch()
	return listener, nil
}

// inherit takes the files of wire.BootArgs.FirstUser.
func (k *Keeper) inherit(claim *wire.ClaimArgs) {
	if k.args.FirstUser == 0 {
		return
	}
	k.users = os.NewFile(wire.FirstFile, "users")
	if claim != nil {
		for i := range claim.Mounts {
			claim.Files = append(claim.Files, os.NewFile(uintptr(wire.FirstFile+1+i), "mount"))
		}
	}
}

// begin boots the sandbox, and gives it its image unless it is a warm one.
func (k *Keeper) begin(claim *wire.ClaimArgs, stage func(string)) (err error) {
	k.booted = time.Now()
	if k.args.Restore != "" {
		defer stage("restore")
		return k.restore(claim)
	}
	if err := k.onThread(k.bootSandbox); err != nil {
		return err
	}
	stage("boot")
	if claim != nil {
		if err := k.claim(claim); err != nil {
			_ = k.onThread(k.sandbox.Destroy)
			return err
		}
		stage("start")
	}
	return nil
}

// bootSandbox boots gVisor, or a container.
func (k *Keeper) bootSandbox() (err error) {
	if k.args.Container != nil {
		k.sandbox, err = container.Boot(k.args, k.tools)
		return err
	}
	if k.guest, err = guest.Boot(guest.Options{Args: k.args, Tools: k.tools, Inits: k.inits}); err == nil {
		k.sandbox = k.guest
	}
	return err
}

// listenToInits replaces this process's standard output, which the init programs share, by a pipe to inits.
func (k *Keeper) listenToInits() error {
	r, w, err := os.Pipe()
	if err != nil {
		return errors.Wrapf(err, "pipe")
	}
	defer w.Close()
	k.inits = r
	return errors.Wrapf(unix.Dup3(int(w.Fd()), int(os.Stdout.Fd()), 0), "replace standard output")
}

// awaitReady returns when commands can start, shortly after the sandbox got its image. Conflict if it has no
// image, or has ended.
func (k *Keeper) awaitReady() error {
	if err := k.errEnded(); err != nil {
		return err
	}
	k.mu.Lock()
	claim := k.args.Claim
	k.mu.Unlock()
	if claim == nil {
		return errors.Newf(errors.Conflict, "the sandbox has no image yet")
	}
	select {
	case <-k.sandbox.Ready():
		return nil
	case <-k.ended:
		return k.errEnded()
	}
}

// claim gives the sandbox its image.
func (k *Keeper) claim(c *wire.ClaimArgs) error {
	k.image.Lock()
	defer k.image.Unlock()
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.args.Claim != nil {
		return errors.Newf(errors.Conflict, "the sandbox is taken")
	}
	if err := k.sandbox.Claim(c, k.onThread); err != nil {
		return err
	}
	if err := k.network.Set(c.Network, k.sandbox.Link); err != nil {
		return errors.Stage(err, "network")
	}
	owner, err := k.lookUp(c.User)
	if err != nil {
		return errors.Stage(err, "start")
	}
	if err := k.giveVolumes(c.Mounts, owner); err != nil {
		return errors.Stage(err, "volumes")
	}
	return k.claimed(c)
}

// giveVolumes changes the owner of new volumes to the sandbox's user.
func (k *Keeper) giveVolumes(mounts []wire.Mount, owner *user.ExecUser) error {
	if owner.Uid == 0 || k.args.Rootless { // a rootless keeper may not change owners
		return nil
	}
	for _, m := range mounts {
		if m.ReadOnly || m.Foreign {
			continue
		}
		if err := volume.Give(m.Source, owner.Uid, owner.Gid); err != nil {
			return err
		}
	}
	return nil
}

// claimed completes a claim when the sandbox has its image. k.mu is held.
func (k *Keeper) claimed(c *wire.ClaimArgs) error {
	if n := k.args.Limits.Memory; c.Keep && n > 0 {
		if err := k.sandbox.RaiseMemory(n + reserve(n)); err != nil {
			return errors.Stage(err, "start")
		}
	}
	k.args.Claim = c
	go k.watchMain()
	go k.watchVolumes(c.Mounts)
	return nil
}

// serve handles one connection.
func (k *Keeper) serve(conn *wire.Conn) {
	defer conn.Close()
	req, err := receiveRequest(conn)
	if err == nil {
		err = k.answer(conn, req)
	}
	if err != nil {
		_ = conn.SendJSON(wire.KindFailure, wire.FailureOf(err))
	}
}

func receiveRequest(conn *wire.Conn) (wire.Request, error) {
	kind, payload, err := conn.Receive()
	if err != nil {
		return wire.Request{}, err
	}
	if kind != wire.KindRequest {
		return wire.Request{}, errors.Errorf("expected a request, got frame %q", kind)
	}
	var req wire.Request
	return req, errors.Wrapf(json.Unmarshal(payload, &req), "decode request")
}

// answer executes req and sends the reply.
func (k *Keeper) answer(conn *wire.Conn, req wire.Request) (err error) {
	switch {
	case req.Op == wire.Claim && req.Claim != nil:
		stage := guest.StageClock(conn)
		if n := len(req.Claim.Mounts); n > 0 && k.args.FirstUser != 0 {
			if req.Claim.Files, err = conn.ReceiveFiles(n); err != nil {
				return err
			}
			defer req.Claim.CloseFiles()
		}
		if err := k.claim(req.Claim); err != nil {
			return err
		}
		stage("start")
		k.saveState()
		return conn.SendJSON(wire.KindReply, wire.Reply{})
	case req.Op == wire.Prepare && req.Prepare != nil:
		if err := k.prepare(req.Prepare); err != nil {
			return err
		}
		return conn.SendJSON(wire.KindReply, wire.Reply{})
	case req.Op == wire.Start && req.Start != nil:
		return k.serveStart(conn, req.Start)
	case req.Op == wire.Attach && req.Attach != nil:
		return k.serveAttach(conn, req.Attach)
	case req.Op == wire.Control && req.Control != nil:
		if err := k.control(req.Control); err != nil {
			return err
		}
		return conn.SendJSON(wire.KindReply, wire.Reply{})
	case req.Op == wire.Processes:
		return conn.SendJSON(wire.KindReply, wire.Reply{Processes: k.processes()})
	case req.Op == wire.Info:
		state := k.state()
		reply := wire.Reply{State: &state}
		k.mu.Lock()
		if k.args.Claim != nil {
			reply.Claim = &wire.ClaimArgs{Spec: k.args.Claim.Spec}
		}
		k.mu.Unlock()
		return conn.SendJSON(wire.KindReply, reply)
	case req.Op == wire.Wait:
		k.awaitEnd(conn)
		return conn.SendJSON(wire.KindReply, wire.Reply{End: &k.end})
	case req.Op == wire.Usage:
		used, err := k.usage()
		if err != nil {
			return err
		}
		return conn.SendJSON(wire.KindReply, wire.Reply{Usage: &used})
	case req.Op == wire.Snapshot:
		return k.serveSnapshot(conn, req.Path)
	case req.Op == wire.Checkpoint && req.Path != "":
		if err := k.checkpoint(req.Path); err != nil {
			return err
		}
		return conn.SendJSON(wire.KindReply, wire.Reply{})
	case req.Op == wire.SetNetwork && req.Network != nil:
		if err := k.setNetwork(*req.Network); err != nil {
			return err
		}
		return conn.SendJSON(wire.KindReply, wire.Reply{})
	case req.Op == wire.SetPeers && req.Peers != nil:
		if err := k.setPeers(req.Peers); err != nil {
			return err
		}
		return conn.SendJSON(wire.KindReply, wire.Reply{})
	case req.Op == wire.Packets:
		return k.servePackets(conn)
	case req.Op == wire.Denials && req.Denials != nil:
		return k.serveDenials(conn, req.Denials.Seq)
	case req.Op == wire.Intercepted:
		return serveIntercepted(k, conn)
	case req.Op == wire.Dial && req.Dial != nil:
		return k.serveDial(conn, req.Dial)
	case req.Op == wire.Destroy:
		return k.serveDestroy(conn)
	}
	return errors.Errorf("unknown request %q", req.Op)
}

// awaitEnd returns when the sandbox has ended or the client has disconnected.
func (k *Keeper) awaitEnd(conn *wire.Conn) {
	gone := make(chan struct{})
	go func() {
		_, _, _ = conn.Receive()
		close(gone)
	}()
	select {
	case <-k.ended:
	case <-gone:
	}
}

// serveDestroy ends the sandbox and this process.
func (k *Keeper) serveDestroy(conn *wire.Conn) error {
	k.mu.Lock()
	k.destroy = true
	k.mu.Unlock()
	err := k.release()
	<-k.ended
	if err != nil {
		return err
	}
	_ = conn.SendJSON(wire.KindReply, wire.Reply{End: &k.end})
	k.finish()
	return nil
}

// release ends the sandbox and frees its resources. watch then notices the end.
func (k *Keeper) release() error {
	return errors.Join(k.onThread(k.sandbox.Destroy), k.network.Close())
}

// watch waits for the end of the sandbox and determines its reason.
func (k *Keeper) watch() {
	stop := make(chan struct{})
	if k.args.Limits.Memory > 0 {
		go k.watchMemory(stop)
	}
	status := k.sandbox.Wait()
	close(stop)
	k.mu.Lock()
	oom := k.oom || k.sandbox.OutOfMemory()
	destroyed := k.destroy && !oom
	k.mu.Unlock()
	switch {
	case oom:
		k.end = engine.End{OutOfMemory: true,
			Detail: "the sandbox used more than its " + mebibytes(k.args.Limits.Memory) + " of memory"}
	case destroyed:
		k.end = engine.End{Destroyed: true, Detail: "the sandbox was destroyed"}
	default:
		k.end = engine.End{Detail: "the sandbox's process ended by itself: " + describe(status)}
	}
	close(k.ended)
}

// watchMain ends the sandbox when no command can start in it any longer.
func (k *Keeper) watchMain() {
	k.sandbox.AwaitMain()
	select {
	case <-k.ended:
	default:
		k.sandbox.Kill()
	}
}

// state returns the keeper's state, without anything that may be secret.
func (k *Keeper) state() wire.State {
	k.mu.Lock()
	defer k.mu.Unlock()
	s := wire.State{Ref: k.args.Ref, Keeper: os.Getpid(), Sentry: k.sandbox.Pid(), Started: k.booted,
		Cgroup: k.args.Cgroup, FirstUser: k.args.FirstUser,
		Limits: k.args.Limits}
	if k.args.Claim != nil {
		s.ID, s.Network = k.args.Claim.ID, k.network.State()
	}
	select {
	case <-k.ended:
		s.End = &k.end
	default:
	}
	return s
}

// saveState writes the state to a file that outlives this process.
func (k *Keeper) saveState() {
	b, err := json.Marshal(k.state())
	if err == nil {
		err = atomicfile.Write(wire.StateFile, b, 0o600)
	}
	// The last state says how the sandbox ended. It must be kept even if the sandbox has filled the disk.
	if err = errors.Join(err, atomicfile.Reserve(wire.StateFile)); err != nil {
		log.Warningf("keep state: %v", err)
	}
}

// logTo redirects the logs of gVisor's packages to a file of the sandbox.
func logTo(name string) error {
	f, err := os.OpenFile(filepath.Clean(name), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return errors.Wrapf(err, "open log")
	}
	log.SetTarget(log.GoogleEmitter{Writer: &log.Writer{Next: io.Writer(f)}})
	log.SetLevel(log.Warning)
	return nil
}
