// Package errors holds Harvest's error kinds and keeps two texts apart: what a client may read and what only operators
// may.
//
// Newf and Explainf write for clients; Wrapf and Errorf write for operators. A foreign error that was only wrapped
// therefore never reaches a client: Message answers with the kind's general sentence instead.
package errors

import (
	"context"
	stderrors "errors"
	"fmt"
	"io/fs"
	"strings"
)

// Kind classifies an error. It is an error itself, so errors.Is(err, errors.NotFound) works, and its text is the wire
// code.
type Kind string

// The kinds. Each maps to one HTTP status, gRPC code and exit code in the tables of the edges.
const (
	Invalid         Kind = "invalid"         // the request is wrong and stays wrong
	Unauthenticated Kind = "unauthenticated" // no or unknown credentials
	Denied          Kind = "denied"          // known, but not allowed
	NotFound        Kind = "not_found"       // no such thing, or not yours
	Conflict        Kind = "conflict"        // the thing's state forbids it now
	Gone            Kind = "gone"            // the thing has ended for good
	Exhausted       Kind = "exhausted"       // a quota, limit, disk or memory is used up
	Unsupported     Kind = "unsupported"     // this engine or machine cannot do it
	Unavailable     Kind = "unavailable"     // not now; the same request may work later
	Timeout         Kind = "timeout"         // a time limit ended it
	Canceled        Kind = "canceled"        // the caller gave up
	Internal        Kind = "internal"        // our fault
)

// Kinds lists every kind, so that tables over kinds can be checked for completeness.
var Kinds = []Kind{Invalid, Unauthenticated, Denied, NotFound, Conflict, Gone, Exhausted, Unsupported, Unavailable,
	Timeout, Canceled, Internal}

// Error returns the wire code.
func (k Kind) Error() string { return string(k) }

var general = map[Kind]string{
	Invalid: "the request is not valid", Unauthenticated: "sign in first", Denied: "this is not allowed",
	NotFound: "there is no such thing",
	Conflict: "the current state does not allow this", Gone: "this has ended", Exhausted: "a limit is reached",
	Unsupported: "this is not supported here",
	Unavailable: "this is not available right now; try again", Timeout: "the time limit was reached",
	Canceled: "the request was canceled",
	Internal: "something went wrong inside Harvest; the log has the details",
}

// fault is the one error type of Harvest. Only the fields that its constructor sets are filled.
type fault struct {
	kind   Kind   // "" when inherited from err
	client string // text for clients, "" when there is none
	op     string // text for operators, "" when there is none
	stage  string
	remedy string
	exit   int // 0 when there is none
	err    error
}

func (f *fault) Error() string {
	text := f.op
	if text == "" {
		text = f.client
	}
	switch {
	case f.err == nil:
		return text
	case text == "":
		return f.err.Error()
	}
	return text + ": " + f.err.Error()
}

func (f *fault) Unwrap() error { return f.err }

// Is reports a match with this fault's own kind, so that errors.Is works with kinds.
func (f *fault) Is(target error) bool {
	k, ok := target.(Kind)
	return ok && KindOf(f) == k
}

// Newf returns an error of the kind whose text clients may read.
func Newf(kind Kind, format string, args ...any) error {
	return &fault{kind: kind, client: fmt.Sprintf(format, args...)}
}

// Explainf puts a kind and a text for clients on err; err itself stays for operators. It returns nil if err is nil.
func Explainf(err error, kind Kind, format string, args ...any) error {
	if err == nil {
		return nil
	}
	return &fault{kind: kind, client: fmt.Sprintf(format, args...), err: err}
}

// Wrapf adds context for operators and keeps err's kind and client text. It returns nil if err is nil.
func Wrapf(err error, format string, args ...any) error {
	if err == nil {
		return nil
	}
	return &fault{op: fmt.Sprintf(format, args...), err: err}
}

// Errorf returns an internal error that only operators can read.
func Errorf(format string, args ...any) error {
	return &fault{kind: Internal, op: fmt.Sprintf(format, args...)}
}

// Stage names the step that failed. The innermost stage wins. It returns nil if err is nil.
func Stage(err error, stage string) error {
	if err == nil {
		return nil
	}
	return &fault{stage: stage, err: err}
}

// Remedy says what the reader can do about err. The innermost remedy wins. It returns nil if err is nil.
func Remedy(err error, format string, args ...any) error {
	if err == nil {
		return nil
	}
	return &fault{remedy: fmt.Sprintf(format, args...), err: err}
}

// Exit gives err the exit code that a shell would report for it: 127 for a program that does not exist, 126 for one
// that cannot be executed. It returns nil if err is nil.
func Exit(err error, code int) error {
	if err == nil {
		return nil
	}
	return &fault{exit: code, err: err}
}

// ExitOf returns the outermost exit code, or 0.
func ExitOf(err error) int {
	code := 0
	walk(err, func(f *fault) bool { code = f.exit; return code == 0 })
	return code
}

// KindOf returns err's kind: the outermost that was set, else what the standard library's errors say, else Internal. It
// is "" for nil.
func KindOf(err error) Kind {
	if err == nil {
		return ""
	}
	kind := Kind("")
	walk(err, func(f *fault) bool { kind = f.kind; return kind == "" })
	if kind != "" {
		return kind
	}
	var k Kind
	switch {
	case stderrors.As(err, &k):
		return k
	case stderrors.Is(err, context.Canceled):
		return Canceled
	case stderrors.Is(err, context.DeadlineExceeded):
		return Timeout
	}
	return Internal
}

// Message returns the outermost text that clients may read, or the general sentence of err's kind.
func Message(err error) string {
	text := ""
	walk(err, func(f *fault) bool { text = f.client; return text == "" })
	if text == "" {
		text = general[KindOf(err)]
	}
	return text
}

// StageOf returns the innermost stage, or "".
func StageOf(err error) string {
	stage := ""
	walk(err, func(f *fault) bool {
		if f.stage != "" {
			stage = f.stage
		}
		return true
	})
	return stage
}

// RemedyOf returns the innermost remedy, or "".
func RemedyOf(err error) string {
	remedy := ""
	walk(err, func(f *fault) bool {
		if f.remedy != "" {
			remedy = f.remedy
		}
		return true
	})
	return remedy
}

// walk calls visit for every fault from the outside in, depth first, until it returns false.
func walk(err error, visit func(*fault) bool) bool {
	for err != nil {
		if f, ok := err.(*fault); ok && !visit(f) {
			return false
		}
		switch u := err.(type) {
		case interface{ Unwrap() error }:
			err = u.Unwrap()
		case interface{ Unwrap() []error }:
			for _, e := range u.Unwrap() {
				if !walk(e, visit) {
					return false
				}
			}
			return true
		default:
			return true
		}
	}
	return true
}

// Is and As are the standard library's, so that files need one errors import.
func Is(err, target error) bool { return stderrors.Is(err, target) }

// As finds the first error of target's type in err's tree.
func As(err error, target any) bool { return stderrors.As(err, target) }

// Join wraps the errors that are not nil, or returns nil if there are none. The text is one line for errors of one line
// each.
func Join(errs ...error) error {
	var j joined
	for _, err := range errs {
		if err != nil {
			j = append(j, err)
		}
	}
	if len(j) == 0 {
		return nil
	}
	return &j
}

// joined is what Join returns. It is a pointer so that errors can be compared.
type joined []error

func (j *joined) Error() string {
	texts := make([]string, len(*j))
	for i, err := range *j {
		texts[i] = err.Error()
	}
	return strings.Join(texts, "; ")
}

func (j *joined) Unwrap() []error { return *j }

// IsNotExist reports whether err says that a file does not exist.
func IsNotExist(err error) bool { return stderrors.Is(err, fs.ErrNotExist) }
