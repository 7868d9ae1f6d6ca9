// Package modalhost gives whole-run tests a server that speaks Modal's protocol.
package modalhost

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/RelevanceAI/harvest/client"
	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/client/transport/socket"
	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/internal/image/imagetest"
	"github.com/RelevanceAI/harvest/test/host"
)

// Host is a running server that speaks Modal's protocol.
type Host struct {
	T       *testing.T
	Program string
	UID     int // the user and group that run the program; 0: those of the test
	Environ []string
	Up      *exec.Cmd
	Ended   <-chan struct{} // closed when Up has ended
	Modal   []string        // the output of harvest modal env
	Log     Log             // the output of all servers
}

// New starts a server. A registry on this machine has images in place of those that Modal's test suites use.
func New(t *testing.T) *Host {
	t.Helper()
	registry := StandIns(t)
	h := &Host{T: t, Program: testenv.Binary(t)}
	dir := testenv.DataDir(t)
	h.Environ = append(Env(dir), "HARVEST_LIMITS_CPU=1", "HARVEST_LIMITS_MEMORY=256MiB",
		"HARVEST_REGISTRIES_MIRRORS=docker.io="+registry+",459781239556.dkr.ecr.us-east-1.amazonaws.com="+registry+
			",us-east1-docker.pkg.dev="+registry, "HARVEST_REGISTRIES_INSECURE="+registry)
	h.Start()
	t.Cleanup(h.Stop)
	h.Modal = h.ClientEnv()
	return h
}

// WithBase starts a server that has the base image, which is all that the engine modal needs.
func WithBase(t *testing.T) *Host {
	t.Helper()
	return Of(t, testenv.Binary(t))
}

// Of is WithBase with another binary than the ordinary one.
func Of(t *testing.T, program string) *Host {
	t.Helper()
	h := &Host{T: t, Program: program}
	dir := testenv.DataDir(t)
	images := filepath.Join(dir, "images")
	if err := os.MkdirAll(images, 0o700); err != nil {
		t.Fatal(err)
	}
	library := imagetest.Library(t)
	host.ShareImage(t, filepath.Dir(library.Root(imagetest.Base(t, library))), images, "base")
	h.Environ = append(Env(dir), "HARVEST_OUTPUT_BYTES=16MiB")
	h.Start()
	t.Cleanup(h.Stop)
	h.Modal = h.ClientEnv()
	return h
}

// Ordinary is WithBase with a server of an ordinary user, not of root.
func Ordinary(t *testing.T) *Host {
	t.Helper()
	testenv.Root(t)
	h := &Host{T: t, Program: testenv.Binary(t), UID: 65534}
	dir := testenv.DataDir(t)
	images := filepath.Join(dir, "images")
	library := imagetest.Library(t)
	base := filepath.Dir(library.Root(imagetest.Base(t, library)))
	err := errors.Join(os.CopyFS(filepath.Join(images, filepath.Base(base)), os.DirFS(base)),
		os.MkdirAll(filepath.Join(images, ".names"), 0o700),
		os.Symlink(filepath.Base(base), filepath.Join(images, ".names", "base")),
		filepath.WalkDir(dir, func(path string, _ os.DirEntry, err error) error {
			return errors.Join(err, os.Lchown(path, h.UID, h.UID))
		}))
	if err != nil {
		t.Fatal(err)
	}
	h.Environ = append(Env(dir), "HOME="+dir)
	h.Start()
	t.Cleanup(h.Stop)
	h.Modal = h.ClientEnv()
	return h
}

// command returns a command line of the host's user.
func (h *Host) command(args ...string) *exec.Cmd {
	cmd := exec.CommandContext(context.WithoutCancel(h.T.Context()), h.Program, args...)
	cmd.Env = h.Environ
	if h.UID != 0 {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(h.UID), Gid: uint32(h.UID)}}
	}
	return cmd
}

// Env returns the environment of a server that listens on TCP for Modal's protocol only.
func Env(dir string) []string {
	return append(testenv.CleanEnv(), "HARVEST_DATA="+dir, "HARVEST_POOL=2", "HARVEST_REFRESH=false",
		"HARVEST_MODAL_LISTEN=127.0.0.1:0",
		"HARVEST_SERVER_LISTEN=none", "HARVEST_LOG_LEVEL=debug")
}

// Start starts the server and waits until it answers.
func (h *Host) Start() {
	h.T.Helper()
	h.Up = h.command("up")
	log := &h.Log
	h.Up.Stdout, h.Up.Stderr = log, log
	if err := h.Up.Start(); err != nil {
		h.T.Fatal(err)
	}
	h.T.Cleanup(func() {
		if h.T.Failed() {
			h.T.Logf("the server said:\n%s", log.tail())
		}
	})
	ended := make(chan struct{})
	go func() {
		_ = h.Up.Wait()
		close(ended)
	}()
	h.Ended = ended
	testenv.Try(h.T, func() error {
		select {
		case <-ended:
			h.T.Fatalf("the server has ended:\n%s", log.tail())
		default:
		}
		// A command would start another server, and a server that was killed leaves its socket's file.
		conn, err := socket.Dial(h.T.Context(), h.Data(), client.Socket)
		if err != nil {
			return err
		}
		_ = conn.Close()
		_, err = h.Run("modal", "env", "--name", fmt.Sprintf("test-%d", time.Now().UnixNano()))
		return err
	})
}

// Data returns the server's data directory.
func (h *Host) Data() string {
	for _, pair := range h.Environ {
		if dir, ok := strings.CutPrefix(pair, "HARVEST_DATA="); ok {
			return dir
		}
	}
	h.T.Fatal("the server has no data directory")
	return ""
}

// Stop stops the server and its sandboxes.
func (h *Host) Stop() {
	if out, err := h.Run("down", "--sandboxes"); err != nil {
		h.T.Errorf("end the server: %v\n%s", err, out)
	}
	<-h.Ended // down waited for it
}

// Run runs a command line to its end, and returns its outputs together.
func (h *Host) Run(args ...string) (string, error) {
	out, err := h.command(args...).CombinedOutput()
	return string(out), err
}

// ClientEnv returns the variables of harvest modal env, for the environment of a process.
func (h *Host) ClientEnv() []string {
	h.T.Helper()
	out, err := h.Run("modal", "env")
	if err != nil {
		h.T.Fatalf("harvest modal env: %v\n%s", err, out)
	}
	var vars []string
	for line := range strings.Lines(out) {
		if pair, ok := strings.CutPrefix(strings.TrimSpace(line), "export "); ok {
			vars = append(vars, pair)
		}
	}
	if len(vars) != 6 { // the server, the key in two parts, and the files of trusted authorities for three runtimes
		h.T.Fatalf("harvest modal env printed %q", out)
	}
	return vars
}

// Log is a writer that keeps everything, for use by several goroutines.
type Log struct {
	mu  sync.Mutex
	buf strings.Builder // guarded by mu
}

// Write implements io.Writer.
func (w *Log) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.buf.Write(p)
}

func (w *Log) tail() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	text := w.buf.String()
	return text[max(0, len(text)-6000):]
}

// All returns everything so far.
func (w *Log) All() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.buf.String()
}
