// Package embedded is a local S3 server for users without another one: a separate process serves a directory
// (package serve).
package embedded

import (
	"context"
	"crypto/rand"
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
	"github.com/RelevanceAI/harvest/internal/base/atomicfile"
	"github.com/RelevanceAI/harvest/internal/base/logf"
)

// Name is the first argument of the serving process.
const Name = "harvest-s3"

// Lock is the name of the lock file in the directory of a Server. The serving process holds it.
const Lock = "lock"

// LastEnd is how long running requests may take after the starter is gone.
const LastEnd = 2 * time.Second

// Socket is the name of the Unix socket in the directory of a Server.
const Socket = "s3.sock"

// The content of a Server's directory. The process runs in buckets, so that the socket's path stays short
// wherever the directory is.
const (
	bucketsName = "buckets"
	keysName    = "keys.json"
	logName     = "s3.log"
)

const (
	startTime  = 30 * time.Second       // limit for the start of a process
	firstPause = 100 * time.Millisecond // pause before a crashed process is restarted; doubled each time
	longPause  = 30 * time.Second
	calm       = time.Minute // after serving this long, the pause is short again
	logLimit   = 1 << 20     // size at which the log is truncated
)

// Keys are the credentials of the server. The process gets them over a pipe, which no other process can read.
type Keys struct {
	AccessKeyID     string `json:"access_key_id"`
	SecretAccessKey string `json:"secret_access_key"`
}

// Started is a process's report: it serves, or the error.
type Started struct {
	Kind    errors.Kind `json:"kind,omitempty"`
	Message string      `json:"message,omitempty"`
	Remedy  string      `json:"remedy,omitempty"`
}

// Options of a Server.
type Options struct {
	Dir        string // directory of buckets, keys and socket; created with access for the owner only
	Executable string // a program whose main calls serve.Main; "" means this process's
}

// Server is a local S3 server on a Unix socket that only its owner can reach. It runs in a separate process,
// which is restarted when it dies, and ends with this process. All methods may be called concurrently.
type Server struct {
	opts Options
	keys Keys
	stop context.CancelFunc
	done chan struct{}

	mu  sync.Mutex
	pid int // guarded by mu; of the process; 0 without one
}

// Start serves the buckets in a directory until Stop. Kinds: Unsupported if the file system does not support
// extended attributes.
func Start(ctx context.Context, o Options) (*Server, error) {
	if o.Executable == "" {
		exe, err := os.Executable()
		if err != nil {
			return nil, errors.Wrapf(err, "find own program")
		}
		o.Executable = exe
	}
	s := &Server{opts: o, done: make(chan struct{})}
	if err := os.MkdirAll(s.buckets(), 0o700); err != nil {
		return nil, errors.Wrapf(err, "make the directory of the embedded S3")
	}
	var err error
	if s.keys, err = keys(filepath.Join(o.Dir, keysName)); err != nil {
		return nil, err
	}
	logf.Redact(s.keys.SecretAccessKey)
	ctx, s.stop = context.WithCancel(context.WithoutCancel(ctx))
	p, err := s.spawn(ctx)
	if err != nil {
		s.stop()
		return nil, err
	}
	go s.tend(ctx, p)
	return s, nil
}

// Stop ends the process and waits for its end.
func (s *Server) Stop() {
	s.stop()
	<-s.done
	_ = os.Remove(s.Socket()) // a killed process leaves it behind
}

// Socket is the path of the Unix socket.
func (s *Server) Socket() string { return filepath.Join(s.opts.Dir, Socket) }

// Keys are the credentials for all buckets.
func (s *Server) Keys() Keys { return s.keys }

// PID is the id of the serving process, 0 without one.
func (s *Server) PID() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.pid
}

func (s *Server) buckets() string { return filepath.Join(s.opts.Dir, bucketsName) }

// Bucket creates a bucket unless it exists.
func (s *Server) Bucket(name string) error {
	path, err := s.bucket(name)
	if err != nil {
		return err
	}
	err = os.Mkdir(path, 0o700)
	if errors.Is(err, os.ErrExist) {
		return nil
	}
	return errors.Wrapf(err, "make a bucket of the embedded S3")
}

// Has reports whether a bucket exists.
func (s *Server) Has(name string) bool {
	path, err := s.bucket(name)
	if err == nil {
		_, err = os.Stat(path)
	}
	return err == nil
}

// Drop deletes a bucket with its objects, if it exists.
func (s *Server) Drop(name string) error {
	path, err := s.bucket(name)
	if err != nil {
		return err
	}
	return errors.Wrapf(os.RemoveAll(path), "delete a bucket of the embedded S3")
}

// bucket returns the directory of a bucket. Invalid for a name that no bucket can have.
func (s *Server) bucket(name string) (string, error) {
	if name != filepath.Base(name) || name == "" || name[0] == '.' {
		return "", errors.Newf(errors.Invalid, "invalid bucket name %.100q", name)
	}
	return filepath.Join(s.buckets(), name), nil
}

// keys loads the credentials, or creates them. They are stored because mounts that outlive this process
// continue to use them.
func keys(path string) (Keys, error) {
	var k Keys
	text, err := os.ReadFile(path)
	if err == nil {
		if err := json.Unmarshal(text, &k); err != nil || k.AccessKeyID == "" || k.SecretAccessKey == "" {
			return k, errors.Remedy(errors.Newf(errors.Internal,
				"the file with the keys of the embedded S3 is damaged"), "remove %s; new ones are made", path)
		}
		return k, nil
	}
	if !errors.IsNotExist(err) {
		return k, errors.Wrapf(err, "read the keys of the embedded S3")
	}
	k = Keys{"HARVEST" + rand.Text()[:13], rand.Text() + rand.Text()}
	if text, err = json.Marshal(k); err != nil {
		return k, errors.Wrapf(err, "make keys of the embedded S3")
	}
	return k, errors.Wrapf(atomicfile.WriteDurable(path, text, 0o600), "write the keys of the embedded S3")
}

// process is a serving process.
type process struct {
	conn  net.Conn // its end ends the process
	cmd   *exec.Cmd
	ended chan struct{}
	err   error // how it ended; valid once ended is closed
}

// end ends the process and waits for its end.
func (p *process) end() {
	p.conn.Close()
	select {
	case <-p.ended:
	case <-time.After(LastEnd + time.Second):
		_ = p.cmd.Process.Kill()
		<-p.ended
	}
}

// spawn starts a process and waits until it serves.
func (s *Server) spawn(ctx context.Context) (*process, error) {
	p, err := s.exec(ctx)
	if err != nil {
		return nil, err
	}
	defer context.AfterFunc(ctx, func() { _ = p.conn.SetDeadline(time.Unix(1, 0)) })()
	_ = p.conn.SetDeadline(time.Now().Add(startTime))
	var answer Started
	err = json.NewEncoder(p.conn).Encode(s.keys)
	if err == nil {
		err = json.NewDecoder(p.conn).Decode(&answer)
	}
	if err != nil {
		_ = p.cmd.Process.Kill()
		p.end()
		words, _ := os.ReadFile(filepath.Join(s.opts.Dir, logName))
		return nil, errors.Wrapf(err, "start the embedded S3: %.500s", words)
	}
	if answer.Kind != "" {
		p.end()
		err := errors.Newf(answer.Kind, "%s", answer.Message)
		if answer.Remedy != "" {
			err = errors.Remedy(err, "%s", answer.Remedy)
		}
		return nil, err
	}
	_ = p.conn.SetDeadline(time.Time{})
	s.now(p.cmd.Process.Pid)
	return p, nil
}

func (s *Server) now(pid int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pid = pid
}

// exec starts the executable as the serving process.
func (s *Server) exec(ctx context.Context) (*process, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, errors.Wrapf(err, "socket pair")
	}
	theirs, mine := os.NewFile(uintptr(fds[1]), "s3"), os.NewFile(uintptr(fds[0]), "starter")
	defer theirs.Close()
	defer mine.Close()
	conn, err := net.FileConn(mine)
	if err != nil {
		return nil, errors.Wrapf(err, "socket pair")
	}
	log, err := s.log()
	if err != nil {
		conn.Close()
		return nil, err
	}
	defer log.Close()
	cmd := exec.CommandContext(context.WithoutCancel(ctx), s.opts.Executable)
	cmd.Args, cmd.Dir, cmd.Stdout, cmd.Stderr, cmd.ExtraFiles = []string{Name, s.opts.Dir}, s.buckets(), log, log,
		[]*os.File{theirs}
	cmd.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
	if dir, ok := os.LookupEnv("GOCOVERDIR"); ok {
		cmd.Env = append(cmd.Env, "GOCOVERDIR="+dir)
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		conn.Close()
		return nil, errors.Wrapf(err, "start the embedded S3")
	}
	p := &process{conn: conn, cmd: cmd, ended: make(chan struct{})}
	go func() {
		p.err = cmd.Wait()
		close(p.ended)
	}()
	return p, nil
}

func (s *Server) log() (*os.File, error) {
	path, flags := filepath.Join(s.opts.Dir, logName), os.O_CREATE|os.O_WRONLY|os.O_APPEND
	if info, err := os.Stat(path); err == nil && info.Size() > logLimit {
		flags |= os.O_TRUNC
	}
	f, err := os.OpenFile(path, flags, 0o600)
	return f, errors.Wrapf(err, "open the log of the embedded S3")
}

// tend restarts the process whenever it ends, until ctx ends.
func (s *Server) tend(ctx context.Context, p *process) {
	defer close(s.done)
	for pause, began := firstPause, time.Now(); ; pause = min(2*pause, longPause) {
		why := error(nil)
		if p != nil {
			select {
			case <-p.ended:
				why = p.err
				p.conn.Close()
			case <-ctx.Done():
				p.end()
				return
			}
			if time.Since(began) > calm {
				pause = firstPause
			}
		}
		s.now(0)
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return
		}
		began = time.Now()
		var err error
		if p, err = s.spawn(ctx); err != nil {
			logf.Errorf(ctx, "the embedded S3 cannot be started again: %v", err)
		} else {
			logf.Warnf(ctx, "the embedded S3 had ended (%v), and was started again after %s", why, pause)
		}
	}
}

// Check returns nil if a directory can be served. Unsupported if its file system does not support extended
// attributes.
func Check(dir string) error {
	const probe = "user.harvest.probe"
	err := unix.Setxattr(dir, probe, []byte("x"), 0)
	if err == nil {
		err = unix.Removexattr(dir, probe)
	}
	if errors.Is(err, unix.ENOTSUP) || errors.Is(err, unix.EPERM) {
		return errors.Remedy(errors.Explainf(err, errors.Unsupported,
			"the file system of the embedded S3 keeps no extended attributes"),
			"have the data directory on ext4, xfs or btrfs")
	}
	return errors.Wrapf(err, "look at the file system of the embedded S3")
}
