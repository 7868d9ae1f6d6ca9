package files

import (
	"archive/tar"
	"io"
	"os"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/tarfs"
)

// trailer is the size of the two blocks that end an archive.
const trailer = 1024

// Concat writes layers, lowest first, as one archive. Its entries have the effect of the layers if they are applied in
// their order, as engines do.
func Concat(out io.Writer, layers []string) error {
	for _, name := range layers {
		if err := appendLayer(out, name); err != nil {
			return err
		}
	}
	return tarfs.Explain(tar.NewWriter(out).Close(), "a layer")
}

// appendLayer writes a layer without its trailer.
func appendLayer(out io.Writer, name string) error {
	f, err := os.Open(name)
	if err != nil {
		return errors.Wrapf(err, "open a layer")
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return errors.Wrapf(err, "measure a layer")
	}
	_, err = io.Copy(out, io.NewSectionReader(f, 0, info.Size()-trailer))
	return tarfs.Explain(err, "a layer")
}
