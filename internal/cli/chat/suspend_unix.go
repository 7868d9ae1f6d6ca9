//go:build unix

package chat

import (
	"os"
	"os/signal"
	"syscall"

	"github.com/RelevanceAI/harvest/client/errors"
)

// suspend stops this process until the shell continues it.
func (t *talk) suspend(s *screen) error {
	if err := t.cooked(s, nil); err != nil {
		return err
	}
	continued := make(chan os.Signal, 1)
	signal.Notify(continued, syscall.SIGCONT)
	defer signal.Stop(continued)
	if err := syscall.Kill(os.Getpid(), syscall.SIGTSTP); err != nil {
		return errors.Wrapf(err, "suspend")
	}
	<-continued // SIGTSTP may arrive a little later
	return t.raw(s)
}
