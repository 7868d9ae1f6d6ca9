package agent

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestOffer checks that a list of commands becomes short, and that names that cannot be typed are left out.
func TestOffer(t *testing.T) {
	t.Parallel()
	got := Offer([]Command{{"compact", " Shorten.\nIn detail.", "how\n"}, {Name: "/plan"}, {}, {Name: "a\nb"},
		{Name: strings.Repeat("x", maxBrief+1)}, {"long", strings.Repeat("xé", maxBrief), ""}})
	want := []Command{{"compact", "Shorten.", "how"}, {Name: "plan"},
		{"long", strings.Repeat("xé", maxBrief/3) + "x…", ""}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if got := Offer(make([]Command, 5)); got != nil {
		t.Errorf("%v", got)
	}
	many := make([]Command, 2*maxCommands)
	for i := range many {
		many[i].Name = "x"
	}
	if got := len(Offer(many)); got != maxCommands {
		t.Errorf("%d commands", got)
	}
}

func TestIsCommand(t *testing.T) {
	t.Parallel()
	for prompt, want := range map[string]bool{"/compact": true, "/memory show": true, "/a:b c/d": true, "": false,
		"/": false, "/ a": false, "do /compact": false, "/etc/hosts is wrong": false, "/a\nb": false,
		" /compact": false} {
		if got := IsCommand(prompt); got != want {
			t.Errorf("%q: %t", prompt, got)
		}
	}
}
