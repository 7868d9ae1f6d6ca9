package errors_test

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"testing"

	"github.com/RelevanceAI/harvest/client/errors"
)

// mission: F6, 10.7
func TestForeignErrorsNeverReachClients(t *testing.T) {
	t.Parallel()
	foreign := fmt.Errorf("dial tcp 10.0.0.7:5432: password hunter2 refused")
	for name, err := range map[string]error{
		"bare":     foreign,
		"wrapped":  errors.Wrapf(foreign, "open store"),
		"staged":   errors.Stage(foreign, "boot"),
		"remedied": errors.Remedy(foreign, "try again"),
		"joined":   errors.Join(foreign, errors.Errorf("and hunter2")),
		"std":      fmt.Errorf("around: %w", errors.Wrapf(foreign, "hunter2")),
		"internal": errors.Errorf("hunter2 is not a number"),
		"kind":     errors.Explainf(foreign, errors.Unavailable, ""),
	} {
		if m := errors.Message(err); strings.Contains(m, "hunter2") || m == "" {
			t.Errorf("%s: clients read %q", name, m)
		}
		if !strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: operators do not read the cause in %q", name, err)
		}
	}
}

// mission: 8.10, 10.1
func TestKindsAndTexts(t *testing.T) {
	t.Parallel()
	base := errors.Newf(errors.NotFound, "there is no volume %q", "v")
	for _, test := range []struct {
		name          string
		err           error
		kind          errors.Kind
		message, text string
	}{
		{"nil", nil, "", "", ""},
		{"new", base, errors.NotFound, `there is no volume "v"`, `there is no volume "v"`},
		{"wrapping keeps kind and client text", errors.Wrapf(base, "mount %d", 1), errors.NotFound,
			`there is no volume "v"`, `mount 1: there is no volume "v"`},
		{"the outermost kind and client text win", errors.Explainf(base, errors.Invalid, "a mount is wrong"),
			errors.Invalid, "a mount is wrong", `a mount is wrong: there is no volume "v"`},
		{"stage and remedy add no text", errors.Stage(errors.Remedy(base, "create it"), "mount"), errors.NotFound,
			`there is no volume "v"`, `there is no volume "v"`},
		{"a bare kind", errors.Conflict, errors.Conflict, "the current state does not allow this", "conflict"},
		{"the first of joined errors", errors.Join(nil, errors.Wrapf(base, "a"), errors.Newf(errors.Denied, "no")),
			errors.NotFound, `there is no volume "v"`, "a: there is no volume \"v\"; no"},
		{"canceled", errors.Wrapf(context.Canceled, "wait"), errors.Canceled, "the request was canceled",
			"wait: context canceled"},
		{"deadline", errors.Wrapf(context.DeadlineExceeded, "wait"), errors.Timeout, "the time limit was reached",
			"wait: context deadline exceeded"},
		{"foreign", fs.ErrClosed, errors.Internal, "something went wrong inside Harvest; the log has the details",
			"file already closed"},
	} {
		if got := errors.KindOf(test.err); got != test.kind {
			t.Errorf("%s: kind %q, want %q", test.name, got, test.kind)
		}
		if got := errors.Message(test.err); got != test.message {
			t.Errorf("%s: clients read %q, want %q", test.name, got, test.message)
		}
		if test.err != nil && test.err.Error() != test.text {
			t.Errorf("%s: operators read %q, want %q", test.name, test.err.Error(), test.text)
		}
	}
}

func TestIs(t *testing.T) {
	t.Parallel()
	cause := errors.Newf(errors.NotFound, "gone")
	err := errors.Wrapf(errors.Explainf(cause, errors.Unavailable, "later"), "outer")
	if !errors.Is(err, errors.Unavailable) || !errors.Is(err, cause) {
		t.Error("an error is not of its own kind, or not its cause")
	}
	if errors.Is(errors.Wrapf(cause, "x"), errors.Conflict) || errors.Is(cause, context.Canceled) {
		t.Error("an error is of a kind that it does not have")
	}
	var kind errors.Kind
	if !errors.As(fmt.Errorf("around: %w", errors.Denied), &kind) || kind != errors.Denied {
		t.Errorf("As found %q", kind)
	}
	_, err = os.Open(t.TempDir() + "/none")
	if !errors.IsNotExist(errors.Wrapf(err, "open")) || errors.IsNotExist(cause) {
		t.Error("IsNotExist is wrong")
	}
}

// mission: A9
// mission: 1.6
func TestInnermostStageAndRemedyWin(t *testing.T) {
	t.Parallel()
	err := errors.Remedy(errors.Stage(errors.Newf(errors.Exhausted, "the disk is full"), "pack"), "delete an image")
	err = errors.Remedy(errors.Stage(errors.Wrapf(err, "outer"), "image"), "look at the log")
	if got := errors.StageOf(err); got != "pack" {
		t.Errorf("stage %q, want pack", got)
	}
	if got := errors.RemedyOf(err); got != "delete an image" {
		t.Errorf("remedy %q, want the innermost", got)
	}
	plain := errors.Errorf("x")
	if errors.StageOf(plain) != "" || errors.RemedyOf(plain) != "" || errors.StageOf(nil) != "" {
		t.Error("a stage or remedy out of nothing")
	}
}

func TestNilStaysNil(t *testing.T) {
	t.Parallel()
	for name, err := range map[string]error{
		"Wrapf": errors.Wrapf(nil, "x"), "Explainf": errors.Explainf(nil, errors.Invalid, "x"),
		"Stage": errors.Stage(nil, "x"), "Remedy": errors.Remedy(nil, "x"), "Join": errors.Join(nil, nil),
	} {
		if err != nil {
			t.Errorf("%s of nil is %v", name, err)
		}
	}
}

func TestEveryKindHasASentence(t *testing.T) {
	t.Parallel()
	seen := map[string]errors.Kind{}
	for _, kind := range errors.Kinds {
		text := errors.Message(kind)
		if text == "" || text == string(kind) {
			t.Errorf("%s has no general sentence", kind)
		}
		if other, ok := seen[text]; ok {
			t.Errorf("%s and %s share the sentence %q", kind, other, text)
		}
		seen[text] = kind
	}
	if len(seen) != 12 {
		t.Errorf("%d kinds are listed", len(seen))
	}
}
