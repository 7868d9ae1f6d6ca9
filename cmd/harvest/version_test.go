package main

import (
	"runtime/debug"
	"testing"
)

// mission: 9.4
func TestVersionNamesTheCommit(t *testing.T) {
	for _, c := range []struct {
		settings []debug.BuildSetting
		want     string
	}{
		{nil, ""},
		{[]debug.BuildSetting{{Key: "vcs.revision", Value: "0123456789abcdef"}, {Key: "vcs.modified", Value: "false"}},
			"0123456789abcdef"},
		{[]debug.BuildSetting{{Key: "vcs.revision", Value: "0123456789abcdef"}, {Key: "vcs.modified", Value: "true"}},
			"0123456789abcdef+changes"},
	} {
		if got := stamp(c.settings); got != c.want {
			t.Errorf("%v: %q", c.settings, got)
		}
	}
	before, beforeRelease := revision, release
	defer func() { revision, release = before, beforeRelease }()
	for _, c := range []struct{ release, revision, want string }{
		{"1.2", "0123456789abcdef", "1.2"}, {"", "0123456789abcdef", "devel-0123456789ab"},
		{"", "0123456789abcdef+changes", "devel-0123456789ab+changes"}, {"", "01", "devel-01"},
	} {
		release, revision = c.release, c.revision
		if got := version(); got != c.want || sourceCommit() != c.revision {
			t.Errorf("%+v: %q of %q", c, got, sourceCommit())
		}
	}
}
