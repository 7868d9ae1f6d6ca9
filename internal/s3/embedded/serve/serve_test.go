package serve

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/versity/versitygw/backend/meta"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/testenv"
)

// TestAttributesThatDoNotFit checks that the part attributes of an object with very many parts are left out if the file
// system cannot hold them, and that any other excess is an error.
func TestAttributesThatDoNotFit(t *testing.T) {
	t.Parallel()
	dir := testenv.DataDir(t)
	f, err := os.Create(filepath.Join(dir, "object"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	large := make([]byte, 70<<10) // more than Linux has for one on any file system
	if err := (attributes{}).StoreAttribute(f, dir, "object", partsOf, large); err != nil {
		t.Errorf("a list of parts that does not fit: %v", err)
	}
	if _, err := (attributes{}).RetrieveAttribute(f, dir, "object", partsOf); !errors.Is(err, meta.ErrNoSuchKey) {
		t.Errorf("it is there: %v", err)
	}
	if err := (attributes{}).StoreAttribute(f, dir, "object", partsOf, []byte("few")); err != nil {
		t.Errorf("one that fits: %v", err)
	}
	if got, err := (attributes{}).RetrieveAttribute(f, dir, "object", partsOf); err != nil || string(got) != "few" {
		t.Errorf("%q, %v", got, err)
	}
	if err := (attributes{}).StoreAttribute(f, dir, "object", "other", large); err == nil {
		t.Error("another attribute that does not fit was taken for stored")
	}
}

// Attributes are read as versitygw reads them, whatever their size, by file and by path.
func TestAttributesAreRead(t *testing.T) {
	t.Parallel()
	dir := testenv.DataDir(t)
	f, err := os.Create(filepath.Join(dir, "object"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for name, value := range map[string]string{"small": "x", "empty": "", "exact": strings.Repeat("y", usual),
		"large": strings.Repeat("z", usual+1)} {
		if err := (attributes{}).StoreAttribute(f, dir, "object", name, []byte(value)); err != nil {
			t.Fatal(err)
		}
		for _, by := range []*os.File{f, nil} {
			got, err := (attributes{}).RetrieveAttribute(by, dir, "object", name)
			if err != nil || string(got) != value {
				t.Errorf("%s: %d bytes, %v; want %d", name, len(got), err, len(value))
			}
		}
	}
	if _, err := (attributes{}).RetrieveAttribute(nil, dir, "object", "none"); !errors.Is(err, meta.ErrNoSuchKey) {
		t.Errorf("one that is not there: %v", err)
	}
	if _, err := (attributes{}).RetrieveAttribute(nil, dir, "nothing", "none"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("of no object: %v", err)
	}
}
