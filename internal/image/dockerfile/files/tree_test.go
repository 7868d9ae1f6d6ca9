package files

import (
	"archive/tar"
	"bytes"
	"io"
	"testing"
)

func dirEntry(tw *tar.Writer, name string, mode int64) {
	_ = tw.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: name + "/", Mode: mode})
}

func fileEntry(tw *tar.Writer, name, data string, mode int64) {
	_ = tw.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: mode, Size: int64(len(data))})
	_, _ = io.WriteString(tw, data)
}

func tarNames(t *testing.T, r *bytes.Buffer) []string {
	t.Helper()
	var names []string
	tr := tar.NewReader(r)
	for {
		hdr, err := tr.Next()
		if err != nil {
			return names
		}
		names = append(names, hdr.Name)
	}
}

// TestEntriesOfArchives checks that entries of foreign archives cannot lead out of the tree or be malformed.
func TestEntriesOfArchives(t *testing.T) {
	t.Parallel()
	for name, hdr := range map[string]*tar.Header{
		"dots":     {Typeflag: tar.TypeReg, Name: "../x"},
		"deep":     {Typeflag: tar.TypeReg, Name: "a/../../x"},
		"NUL":      {Typeflag: tar.TypeReg, Name: "a\x00b", Format: tar.FormatPAX},
		"hardlink": {Typeflag: tar.TypeLink, Name: "x", Linkname: "../../etc/passwd"},
		"no link":  {Typeflag: tar.TypeSymlink, Name: "x", Linkname: ""},
		"owner":    {Typeflag: tar.TypeReg, Name: "x", Uid: -5},
		"sparse":   {Typeflag: tar.TypeGNUSparse, Name: "x"},
	} {
		tr := NewTree()
		if err := tr.addEntry(hdr, text(nil)); err == nil {
			t.Errorf("%s was taken", name)
		}
	}
}
