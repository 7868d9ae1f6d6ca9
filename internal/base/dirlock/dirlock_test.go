//go:build unix

package dirlock

import (
	"os"
	"syscall"
	"testing"

	"github.com/RelevanceAI/harvest/client/errors"
)

// TestErrorsSayWhatToDo is of single errors; package store locks directories.
func TestErrorsSayWhatToDo(t *testing.T) {
	for code, kind := range map[error]errors.Kind{
		syscall.EACCES: errors.Denied, syscall.EROFS: errors.Denied, syscall.ENOTDIR: errors.Invalid,
		syscall.ENOSPC: errors.Exhausted, syscall.EDQUOT: errors.Exhausted,
	} {
		err := dirError(&os.PathError{Op: "open", Path: "/data", Err: code}, "/data")
		if !errors.Is(err, kind) || errors.RemedyOf(err) == "" {
			t.Errorf("%v: %v with the remedy %q, want %s with one", code, err, errors.RemedyOf(err), kind)
		}
	}
}
