package installation

import (
	"path/filepath"
	"testing"
)

func TestName(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "server")
	a, err := Name(file)
	b, again := Name(file)
	if err != nil || again != nil || a != b || len(a) != length {
		t.Errorf("%q, %v and then %q, %v", a, err, b, again)
	}
	if other, err := Name(file + "2"); err != nil || other == a {
		t.Errorf("another installation has the name %q, %v", other, err)
	}
	for _, bad := range []string{"/proc/no/such", t.TempDir()} {
		if _, err := Name(bad); err == nil {
			t.Errorf("%s is no error", bad)
		}
	}
}
