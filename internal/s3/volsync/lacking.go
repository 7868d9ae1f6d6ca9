package volsync

import (
	"strings"

	"golang.org/x/sys/unix"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/s3/tree"
	"github.com/RelevanceAI/harvest/internal/s3/volsync/plan"
)

// lacking is a directory of the bucket that the volume no longer has, so that the sync deletes it in the bucket. It
// returns with its own metadata if an entry beneath it turns out to stay after its deletion was planned, because
// another machine has just changed it.
type lacking struct {
	above *lacking // or nil
	dir   *tree.Entry
}

// next returns the directories above a job, and above the jobs after it. Jobs come in order.
func (l *lacking) next(j *job) (above, then *lacking) {
	for l != nil && !strings.HasPrefix(j.Path, l.dir.Path+"/") {
		l = l.above
	}
	if j.Kind == tree.Dir && j.Local == nil && j.Remote != nil && (j.Op == plan.DeleteRemote || j.Aside) {
		return l, &lacking{l, j.Remote}
	}
	return l, l
}

// again makes the directories once more, if one of them is the reason for an error.
func (l *lacking) again(r *run, err error) bool {
	if l == nil || !errors.Is(err, unix.ENOENT) {
		return false
	}
	return l.make(r) == nil
}

func (l *lacking) make(r *run) error {
	if l.above != nil {
		if err := l.above.make(r); err != nil {
			return err
		}
	}
	fresh, err := r.t.Mkdir(l.dir.Path)
	if fresh {
		r.atEnd(l.dir)
		r.oncemore.Store(true) // the next pass stores it again
		err = describeEarly(r, l.dir)
	}
	return err
}
