package release

import (
	"runtime/debug"
	"testing"
)

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
	before, beforeVersion := revision, version
	defer func() { revision, version = before, beforeVersion }()
	for _, c := range []struct{ version, revision, want string }{
		{"1.2", "0123456789abcdef", "1.2"}, {"", "0123456789abcdef", "devel-0123456789ab"},
		{"", "0123456789abcdef+changes", "devel-0123456789ab+changes"}, {"", "01", "devel-01"},
	} {
		version, revision = c.version, c.revision
		if got := Version(); got != c.want || Commit() != c.revision {
			t.Errorf("%+v: %q of %q", c, got, Commit())
		}
	}
}
