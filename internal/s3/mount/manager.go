package mount

import (
	"context"
	"encoding/json"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/client/transport/socket"
	"github.com/RelevanceAI/harvest/internal/base/atomicfile"
	"github.com/RelevanceAI/harvest/internal/base/logf"
	"github.com/RelevanceAI/harvest/internal/base/places"
	"github.com/RelevanceAI/harvest/internal/base/processes"
	"github.com/RelevanceAI/harvest/internal/base/tasks"
	"github.com/RelevanceAI/harvest/internal/s3"
)

const (
	patience    = 15 * time.Second // of one request to S3
	startTime   = time.Minute      // for a process to mount
	flushTime   = 2 * time.Minute  // to store unstored files when a sandbox ends
	quietTime   = 5 * time.Second  // for a process to answer opQuiet
	rescuePause = 5 * time.Second  // before the next attempt to store a dead process's files; doubled each time
	longPause   = 10 * time.Minute
	answerExtra = 10 * time.Second
	ownEnd      = 2 * time.Second // for a finished process to exit
)

// Options configures a Manager.
type Options struct {
	Dir        string // holds a directory per mount; made if missing
	Executable string // program whose main calls Main; "" means this one
	// Locate returns the location of a mount, with credentials. It is also called for mounts of an
	// earlier Manager.
	Locate func(ctx context.Context, about About) (s3.Location, error)
	Tell   func(Told) // called for events that clients should see; may be nil; must return soon
}

// About describes a mount. It is also stored on disk, and holds no credentials.
type About struct {
	Sandbox string `json:"sandbox"`
	Account string `json:"account"`
	places.Place
	ReadOnly bool  `json:"read_only"`
	Limit    int64 `json:"limit"` // maximum bytes written but not yet stored
}

// Told is an event of a mount.
type Told struct {
	About
	What What
	Path string // of a FileFailed, in the mount
	// Reason is one sentence.
	Reason string
	Unsent []Unsent // of a Left
	Dir    string   // of a Left: the directory of the Unsent files
}

// What names the type of an event.
type What string

// The types of events.
const (
	FileFailed What = "file_failed" // a file could not be stored; it is retried
	Lost       What = "lost"        // the process that served the mount ended: programs get an error
	Left       What = "left"        // the sandbox ended with these files unstored; they are kept
	Sent       What = "sent"        // the files of an earlier Lost or Left are now stored
)

// Manager mounts places in S3. All methods may be called concurrently.
type Manager struct {
	opts     Options
	ctx      context.Context
	stop     context.CancelFunc
	watchers tasks.Group

	mu     sync.Mutex
	ending map[string]bool // guarded by mu; sandboxes whose mounts are being ended
}

// Open returns a Manager. Recover takes over the mounts of an earlier one.
func Open(ctx context.Context, o Options) (*Manager, error) {
	if o.Executable == "" {
		exe, err := os.Executable()
		if err != nil {
			return nil, errors.Wrapf(err, "find own program")
		}
		o.Executable = exe
	}
	if err := os.MkdirAll(o.Dir, 0o700); err != nil {
		return nil, errors.Wrapf(err, "make the directory of mounts")
	}
	m := &Manager{opts: o, ending: map[string]bool{}}
	m.ctx, m.stop = context.WithCancel(context.WithoutCancel(ctx))
	return m, nil
}

// Close stops watching. The mounts stay.
func (m *Manager) Close() {
	m.stop()
	m.watchers.Close()
}

func (m *Manager) dir(sandbox string) string { return filepath.Join(m.opts.Dir, sandbox) }

// Mount mounts a place for a sandbox and returns the directory. On failure it leaves nothing
// behind. Kinds: Unsupported if this machine cannot mount, and those of package internal/s3/volsync.
func (m *Manager) Mount(ctx context.Context, about About) (string, error) {
	if err := Check(); err != nil {
		return "", err
	}
	dir := m.dir(about.Sandbox)
	err := m.prepare(dir, about)
	if err == nil {
		err = m.start(ctx, dir, about)
	}
	if err != nil {
		return "", errors.Join(err, m.remove(dir))
	}
	m.watch(about)
	return filepath.Join(dir, Files), nil
}

func (m *Manager) prepare(dir string, about About) error {
	text, err := json.Marshal(about)
	if err != nil {
		return errors.Wrapf(err, "describe a mount")
	}
	for _, d := range []string{dir, filepath.Join(dir, Files), filepath.Join(dir, spoolName)} {
		if err := os.Mkdir(d, 0o700); err != nil {
			return errors.Wrapf(err, "make the directory of a mount")
		}
	}
	return errors.Wrapf(atomicfile.Write(filepath.Join(dir, aboutName), text, 0o600), "describe a mount")
}

// start starts the process and waits until it has mounted.
func (m *Manager) start(ctx context.Context, dir string, about About) error {
	var s started
	if err := m.spawn(ctx, dir, about, false, startTime, &s); err != nil {
		return err
	}
	if s.Kind != "" {
		err := errors.Newf(s.Kind, "%s", s.Message)
		if s.Remedy != "" {
			err = errors.Remedy(err, "%s", s.Remedy)
		}
		return err
	}
	return nil
}

// spawn starts a process for the mount in dir and reads its first answer.
func (m *Manager) spawn(ctx context.Context, dir string, about About, flushOnly bool, limit time.Duration,
	answer any) error {
	loc, err := m.opts.Locate(ctx, about)
	if err != nil {
		return err
	}
	loc.Patience = patience
	conn, kill, err := m.exec(dir)
	if err != nil {
		return err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, kill)()
	_ = conn.SetDeadline(time.Now().Add(limit))
	err = json.NewEncoder(conn).Encode(settings{Location: loc, ReadOnly: about.ReadOnly, Limit: about.Limit,
		UID: os.Geteuid(), FlushOnly: flushOnly})
	if err == nil {
		err = json.NewDecoder(conn).Decode(answer)
	}
	if err != nil {
		kill()
		if ctx.Err() != nil {
			return errors.Wrapf(context.Cause(ctx), "mount S3")
		}
		words, _ := os.ReadFile(filepath.Join(dir, logName))
		return errors.Wrapf(err, "start the process of a mount: %.500s", words)
	}
	return nil
}

// exec starts this program as the process of a mount.
func (m *Manager) exec(dir string) (conn net.Conn, kill func(), err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, errors.Wrapf(err, "socket pair")
	}
	theirs, mine := os.NewFile(uintptr(fds[1]), "mount"), os.NewFile(uintptr(fds[0]), "starter")
	defer theirs.Close()
	defer mine.Close()
	if conn, err = net.FileConn(mine); err != nil {
		return nil, nil, errors.Wrapf(err, "socket pair")
	}
	log, err := os.OpenFile(filepath.Join(dir, logName), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		conn.Close()
		return nil, nil, errors.Wrapf(err, "open the log of a mount")
	}
	defer log.Close()
	cmd := exec.CommandContext(context.WithoutCancel(m.ctx), m.opts.Executable)
	cmd.Args, cmd.Dir, cmd.Stderr, cmd.ExtraFiles, cmd.Env = []string{Name, dir}, "/", log,
		[]*os.File{theirs}, environ()
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		conn.Close()
		return nil, nil, errors.Wrapf(err, "start the process of a mount")
	}
	go func() { _ = cmd.Wait() }() // reap it
	return conn, func() { _ = cmd.Process.Kill() }, nil
}

// environ returns the part of the server's environment that a process gets: the settings to reach
// S3, and the coverage directory.
func environ() []string {
	env := []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
	for _, name := range []string{"HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy",
		"SSL_CERT_FILE", "SSL_CERT_DIR", "GOCOVERDIR"} {
		if v, ok := os.LookupEnv(name); ok {
			env = append(env, name+"="+v)
		}
	}
	return env
}

// watch reports files that could not be stored, and an unexpected end of the process.
func (m *Manager) watch(about About) {
	m.watchers.Go(func() {
		conn, err := m.ask(m.ctx, about.Sandbox, request{Op: opWatch}, 0)
		if err == nil {
			stop := context.AfterFunc(m.ctx, func() { conn.Close() })
			in := json.NewDecoder(conn)
			for {
				var t told
				if err := in.Decode(&t); err != nil {
					break
				}
				m.tell(Told{About: about, What: FileFailed, Path: t.Path, Reason: t.Message})
			}
			stop()
			conn.Close()
		}
		m.mu.Lock()
		meant := m.ending[about.Sandbox]
		m.mu.Unlock()
		if _, err := os.Lstat(m.dir(about.Sandbox)); errors.IsNotExist(err) {
			meant = true // Finish was faster than this goroutine
		}
		if m.ctx.Err() == nil && !meant {
			m.tell(Told{About: about, What: Lost, Reason: lostReason})
			m.rescue(about)
		}
	})
}

// lostReason explains the end of a process. A sandbox holds its mount by an open descriptor, which
// cannot be switched to another mount.
const lostReason = "the process that served the mount ended, and a running sandbox cannot get another one; written " +
	"files are stored nevertheless; " +
	"create another sandbox to have the files at hand again"

// rescue stores the files of a process that ended, while the sandbox runs on without its mount. It
// retries until everything is stored or the sandbox ends.
func (m *Manager) rescue(about About) {
	dir := m.dir(about.Sandbox)
	for pause := rescuePause; unsent(dir) && len(processes.WithArgs(Name, dir)) == 0; pause = min(2*pause, longPause) {
		m.mu.Lock()
		ends := m.ending[about.Sandbox]
		m.mu.Unlock()
		if ends { // Finish stores the files
			return
		}
		var f finished
		err := m.spawn(m.ctx, dir, about, true, flushTime+answerExtra, &f)
		if err == nil && len(f.Unsent) == 0 {
			m.tell(Told{About: about, What: Sent})
			return
		}
		logf.Warnf(m.ctx, "sandbox %s: %d files of its lost mount are not stored yet: %v", about.Sandbox,
			len(f.Unsent), err)
		select {
		case <-m.ctx.Done():
			return
		case <-time.After(pause):
		}
	}
}

func (m *Manager) tell(t Told) {
	if m.opts.Tell != nil {
		m.opts.Tell(t)
	}
}

// ask sends a request to the process of a mount. limit bounds the wait for the answer; 0 means no
// limit.
func (m *Manager) ask(ctx context.Context, sandbox string, r request, limit time.Duration) (net.Conn, error) {
	conn, err := socket.Dial(ctx, m.dir(sandbox), socketName)
	if err != nil {
		return nil, err
	}
	if limit > 0 {
		_ = conn.SetDeadline(time.Now().Add(limit))
	}
	if err := json.NewEncoder(conn).Encode(r); err != nil {
		conn.Close()
		return nil, errors.Wrapf(err, "ask the process of a mount")
	}
	return conn, nil
}

// Quiet makes the requests in a mount that wait for S3 fail, so that the sandbox can end. It kills
// a process that does not answer.
func (m *Manager) Quiet(ctx context.Context, sandbox string) {
	m.mu.Lock()
	m.ending[sandbox] = true
	m.mu.Unlock()
	dir := m.dir(sandbox)
	if _, err := os.Lstat(dir); err != nil {
		return
	}
	var answer struct{}
	conn, err := m.ask(ctx, sandbox, request{Op: opQuiet}, quietTime)
	if err == nil {
		err = json.NewDecoder(conn).Decode(&answer)
		conn.Close()
	}
	if err != nil {
		killAll(dir) // requests to the mount then fail
	}
}

// SetOwner makes the mount whose directory Mount returned show files of user n as those of this machine's user
// first+n, and store files of that user as user n's. It must be called before the sandbox uses the mount. It reports
// false if the directory is not one of its mounts.
func (m *Manager) SetOwner(ctx context.Context, dir string, first int) (bool, error) {
	sandbox := filepath.Base(filepath.Dir(dir))
	if dir != filepath.Join(m.dir(sandbox), Files) {
		return false, nil
	}
	conn, err := m.ask(ctx, sandbox, request{Op: opOwner, First: uint32(first)}, quietTime)
	if err != nil {
		return false, errors.Wrapf(err, "set the owner of a mount")
	}
	defer conn.Close()
	var answer struct{}
	return true, errors.Wrapf(json.NewDecoder(conn).Decode(&answer), "set the owner of a mount")
}

// Finish unmounts the mount of a sandbox and stores its unstored files, for a bounded time. Files
// that remain are kept, reported, and named in the error. It is not an error if the sandbox has no
// mount.
func (m *Manager) Finish(ctx context.Context, sandbox string) error {
	dir := m.dir(sandbox)
	about, err := readAbout(dir)
	if errors.IsNotExist(err) {
		return m.remove(dir)
	}
	if err != nil {
		return err
	}
	m.Quiet(ctx, sandbox)
	defer func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		delete(m.ending, sandbox)
	}()
	left, err := m.flush(ctx, dir, about)
	if ctx.Err() != nil { // Recover continues
		return errors.Wrapf(context.Cause(ctx), "end a mount")
	}
	endAll(dir, ownEnd)
	unmount(context.WithoutCancel(ctx), filepath.Join(dir, Files))
	if err == nil && len(left) == 0 {
		return m.remove(dir)
	}
	t := Told{About: about, What: Left, Unsent: left, Dir: filepath.Join(dir, spoolName),
		Reason: "S3 cannot be reached"}
	if err != nil {
		t.Reason = errors.Message(err)
	} else if len(left) > 0 {
		t.Reason = left[0].Reason
	}
	m.tell(t)
	return errors.Newf(errors.Unavailable, "some written files could not be stored in S3, and are kept in %s: %s",
		t.Dir, t.Reason)
}

// flush makes the process store the unstored files. If the process is gone, it starts another one.
func (m *Manager) flush(ctx context.Context, dir string, about About) ([]Unsent, error) {
	var f finished
	conn, err := m.ask(ctx, about.Sandbox, request{Op: opFinish, Seconds: flushTime.Seconds()}, flushTime+answerExtra)
	if err == nil {
		stop := context.AfterFunc(ctx, func() { conn.Close() })
		err = json.NewDecoder(conn).Decode(&f)
		stop()
		conn.Close()
	}
	if err == nil || ctx.Err() != nil {
		return f.Unsent, err
	}
	killAll(dir)
	unmount(context.WithoutCancel(ctx), filepath.Join(dir, Files))
	if !unsent(dir) {
		return nil, nil
	}
	err = m.spawn(ctx, dir, about, true, flushTime+answerExtra, &f)
	return f.Unsent, err
}

// unsent reports whether a mount has unstored files.
func unsent(dir string) bool {
	notes, _ := filepath.Glob(filepath.Join(dir, spoolName, "*"+noteSuffix))
	return len(notes) > 0
}

// remove removes a mount's directory once nothing is mounted in it.
func (m *Manager) remove(dir string) error {
	killAll(dir)
	files := filepath.Join(dir, Files)
	unmount(context.WithoutCancel(m.ctx), files)
	// os.Remove removes only an empty directory, so it can never delete files in the bucket.
	if err := os.Remove(files); err != nil && !errors.IsNotExist(err) {
		return errors.Wrapf(err, "remove a mount")
	}
	return errors.Wrapf(os.RemoveAll(dir), "remove a mount")
}

func readAbout(dir string) (About, error) {
	var a About
	text, err := os.ReadFile(filepath.Join(dir, aboutName))
	if err == nil {
		err = json.Unmarshal(text, &a)
	}
	return a, errors.Wrapf(err, "read the record of a mount")
}

// Recover takes over the mounts of an earlier Manager. It watches the mounts of live sandboxes. It
// finishes the others in the background, and retries their unstored files.
func (m *Manager) Recover(ctx context.Context, lives func(sandbox string) bool) error {
	entries, err := os.ReadDir(m.opts.Dir)
	if err != nil {
		return errors.Wrapf(err, "look for mounts")
	}
	for _, entry := range entries {
		sandbox := entry.Name()
		about, err := readAbout(m.dir(sandbox))
		if err == nil && lives(sandbox) {
			m.watch(about)
			continue
		}
		m.watchers.Go(func() {
			before := unsent(m.dir(sandbox))
			if err := m.Finish(m.ctx, sandbox); err != nil {
				logf.Warnf(ctx, "what the sandbox %s left: %v", sandbox, err)
			} else if before {
				m.tell(Told{About: about, What: Sent})
			}
		})
	}
	return nil
}

// killAll sends SIGKILL to the processes of the mount in dir and waits for their end.
func killAll(dir string) { endAll(dir, 0) }

// endAll waits until the processes of the mount in dir have ended, and kills those that run longer
// than grace.
func endAll(dir string, grace time.Duration) {
	const pause = 20 * time.Millisecond
	for waited := time.Duration(0); waited < grace+longestEnd; waited += pause {
		pids := processes.WithArgs(Name, dir)
		if len(pids) == 0 {
			return
		}
		if waited >= grace {
			for _, pid := range pids {
				_ = syscall.Kill(pid, syscall.SIGKILL)
			}
		}
		time.Sleep(pause)
	}
}

// longestEnd bounds the wait for a killed process on a busy machine.
const longestEnd = 10 * time.Second
