// Package shell runs scripts in the sandbox of a session, and writes files there. git never runs on the host in files
// that an agent wrote.
package shell

import (
	"archive/tar"
	"bytes"
	"cmp"
	"context"
	"io"
	"maps"
	"strings"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/logf"
	"github.com/RelevanceAI/harvest/internal/fleet"
	"github.com/RelevanceAI/harvest/internal/fleet/commands"
)

// maxOutput is the size limit for the output of a script, in bytes.
const maxOutput = 256 << 20

// Sandbox is a sandbox of an account.
type Sandbox struct {
	Fleet       *fleet.Fleet
	Account, ID string
}

// Script is a shell script with its input.
type Script struct {
	User   string
	Text   string
	Params []string // $1, $2, …
	Name   string   // $0; "" means "sh"
	Env    map[string]string
	Stdin  string
	Input  io.Reader // instead of Stdin
}

// PrivateFile is the text of a script that writes its input to a file that only its user can read: FILE. If the file is
// in memory, as below /dev/shm, no snapshot contains it.
const PrivateFile = `umask 077; mkdir -p "${1%/*}"; cat >"$1"`

// Run runs a script and returns its output. It returns Exhausted if the output exceeds maxOutput.
func (b Sandbox) Run(ctx context.Context, sh Script) ([]byte, commands.Result, error) {
	w := &bounded{}
	env := map[string]string{"GIT_TERMINAL_PROMPT": "0", "GIT_LFS_SKIP_SMUDGE": "1",
		"GIT_SSH_COMMAND": "ssh -o BatchMode=yes", "LC_ALL": "C.UTF-8"}
	maps.Copy(env, sh.Env)
	req := fleet.ExecRequest{Args: append([]string{"/bin/sh", "-euc", sh.Text, cmp.Or(sh.Name, "sh")},
		sh.Params...), User: sh.User, Workdir: "/", Stdout: w, Env: env}
	if req.Stdin = sh.Input; sh.Stdin != "" {
		req.Stdin = strings.NewReader(sh.Stdin)
	}
	x, err := b.Fleet.Exec(ctx, b.Account, b.ID, req)
	if err != nil {
		return nil, commands.Result{}, err
	}
	result, err := x.Wait(ctx)
	switch {
	case err != nil:
		return nil, result, err
	case w.over:
		return nil, result, errors.Remedy(errors.Newf(errors.Exhausted, "the changes of the session exceed %d MiB",
			maxOutput>>20), "copy the files with \"harvest sandbox cp\"")
	}
	return w.Bytes(), result, nil
}

// Output runs a script that must succeed, and returns its output. Its parameters are $1, $2, ….
func (b Sandbox) Output(ctx context.Context, text string, params ...string) (string, error) {
	out, result, err := b.Run(ctx, Script{Text: text, Params: params})
	if err != nil {
		return "", err
	}
	if result.ReturnCode != 0 {
		return "", errors.Newf(errors.Unavailable, "%s", LastLines(result.Stderr, result.Why()))
	}
	return string(out), nil
}

// CopyFile creates a directory in the sandbox and writes a world-readable file into it.
func (b Sandbox) CopyFile(ctx context.Context, dir, name string, text []byte) error {
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(text)), ModTime: time.Now()})
	if err == nil {
		_, err = w.Write(text)
	}
	if err = errors.Join(err, w.Close()); err != nil {
		return errors.Wrapf(err, "pack %s", name)
	}
	return b.Fleet.CopyIn(ctx, b.Account, b.ID, dir, &archive)
}

// removeTime is the time limit for Remove.
const removeTime = 30 * time.Second

// Remove removes a directory that CopyFile created. It logs a failure.
func (b Sandbox) Remove(ctx context.Context, dir string) {
	ctx, cancel := context.WithTimeout(ctx, removeTime)
	defer cancel()
	req := fleet.ExecRequest{Args: []string{"rm", "-rf", dir}, Workdir: "/"}
	if b.Fleet.Capabilities().Users {
		req.User = "0:0"
	}
	x, err := b.Fleet.Exec(ctx, b.Account, b.ID, req)
	if err == nil {
		_, err = x.Wait(ctx)
	}
	if kind := errors.KindOf(err); err != nil && kind != errors.NotFound && kind != errors.Gone &&
		kind != errors.Conflict {
		logf.Errorf(ctx, "remove %s in %s: %v", dir, b.ID, err)
	}
}

// LastLines returns the last lines of a script's standard error; otherwise if it is empty.
func LastLines(stderr, otherwise string) string {
	lines := strings.Split(strings.TrimSpace(strings.ToValidUTF8(stderr, "")), "\n")
	text := strings.Join(lines[max(0, len(lines)-3):], "; ")
	return cmp.Or(text, otherwise, "it failed and said nothing")
}

// bounded stores the data that is written to it, up to maxOutput.
type bounded struct {
	bytes.Buffer
	over bool
}

var _ io.Writer = (*bounded)(nil)

func (w *bounded) Write(b []byte) (int, error) {
	if w.over = w.over || w.Len()+len(b) > maxOutput; w.over {
		return len(b), nil
	}
	return w.Buffer.Write(b)
}
