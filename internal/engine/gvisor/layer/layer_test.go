package layer

import (
	"strings"
	"testing"

	"github.com/RelevanceAI/harvest/client/errors"
)

func TestFailureComesBack(t *testing.T) {
	t.Parallel()
	sent := errors.Remedy(errors.Newf(errors.Exhausted, "it does not fit"), "more disk")
	text := errors.Errorf("creating event sink: %s", Mark(sent))
	got := failure(text)
	if !errors.Is(got, errors.Exhausted) || errors.Message(got) != "it does not fit" ||
		errors.RemedyOf(got) != "more disk" {
		t.Errorf("it came back as %v", got)
	}
	if err := failure(errors.Errorf("EOF")); !errors.Is(err, errors.Unavailable) {
		t.Errorf("a broken connection is %v", err)
	}
	if failure(nil) != nil {
		t.Error("a success is a failure")
	}
	r := Request{Container: "c", Apply: true, Path: "/x\xff", Mounted: []string{"/a"}}
	if back, err := Decode(encode(r)); err != nil || back.Container != "c" || !back.Apply || len(back.Mounted) != 1 {
		t.Errorf("%+v came back as %+v, %v", r, back, err)
	}
}

// FuzzFailure decodes an error from a compromised sandbox's process.
func FuzzFailure(f *testing.F) {
	f.Add(errors.Errorf("sink: %s", Mark(errors.Newf(errors.Exhausted, "it does not fit"))).Error())
	f.Add(failureMark + `{"Kind":1}`)
	f.Fuzz(func(t *testing.T, text string) {
		err := failure(errors.Errorf("%s", text))
		if err == nil || !strings.Contains(text, failureMark) && !errors.Is(err, errors.Unavailable) {
			t.Errorf("%q is %v", text, err)
		}
	})
}
