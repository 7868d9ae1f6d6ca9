package notify

import (
	"bytes"
	"context"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/session/inbox"
)

// commandTime is how long a command may run, with all its descendants.
const commandTime = 30 * time.Second

// maxSaid is the length limit for the output of a failed command in the log, in bytes.
const maxSaid = 500

// Command runs a program for each item, which gets the item as JSON on its standard input. It runs without a shell, in
// the root directory, and with the variable PATH only: the server's environment may contain keys.
type Command struct {
	Choice
	Args []string
	Path string // value of PATH
	// Limit is how long the command may run; 0 means 30 seconds.
	Limit time.Duration
}

// Send implements inbox.Receiver.
func (c Command) Send(ctx context.Context, item inbox.Item) error {
	text, err := encode(item)
	if err != nil {
		return err
	}
	limit := c.Limit
	if limit == 0 {
		limit = commandTime
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	var said tail
	cmd := exec.CommandContext(ctx, c.Args[0], c.Args[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(append(text, '\n')), &said, &said
	cmd.Dir, cmd.Env = "/", []string{"PATH=" + c.Path}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = time.Second
	err = cmd.Run()
	switch {
	case ctx.Err() != nil:
		return errors.Explainf(ctx.Err(), errors.Timeout, "the command %.80q exceeded %s", c.Args[0], limit)
	case err != nil && len(said) > 0:
		return errors.Explainf(err, errors.Unavailable, "the command %.80q failed: %s", c.Args[0],
			strings.ToValidUTF8(string(said), ""))
	case err != nil:
		return errors.Explainf(err, errors.Unavailable, "the command %.80q failed", c.Args[0])
	}
	return nil
}

// tail keeps the end of what is written.
type tail []byte

func (t *tail) Write(b []byte) (int, error) {
	*t = append(*t, b...)
	if extra := len(*t) - maxSaid; extra > 0 {
		*t = append((*t)[:0], (*t)[extra:]...)
	}
	return len(b), nil
}
