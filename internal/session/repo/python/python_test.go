package python

import "testing"

func TestChoose(t *testing.T) {
	t.Parallel()
	all := Parse("/usr/bin/python3 3.11.2\n/usr/bin/python3.13 3.13.0\nodd\n")
	for specifier, want := range map[string]string{"==3.11.*": "3.11.2", "==3.13.*": "3.13.0", "==3.11.2": "3.11.2",
		"==3.11.1": "", ">=3.8": "3.11.2", ">3.11.2,<4": "3.13.0", "~=3.12": "3.13.0", "~=3.11.0": "3.11.2",
		"!=3.11.*": "3.13.0",
		"<=3.10":   "", "==pypy3.9": "", "<4, >= 3.12": "3.13.0", "===3.13": "3.13.0"} {
		if got, _ := Choose(all, specifier); got.Version != want {
			t.Errorf("%s: %q", specifier, got.Version)
		}
	}
}
