package pod

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"sync"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/engine/gvisor/wire"
	"github.com/RelevanceAI/harvest/internal/image"
)

// Image describes an image of the server to a pod.
type Image struct {
	ID     string
	Config image.Config
	Root   string // SHA-256 of its EROFS file, as hexadecimal digits
	Layer  string // the same of a snapshot's changes; "" for none
}

// Images are the images that the server has described to a pod, and the files that it has sent. They implement
// gvisor.Images. They build nothing.
type Images struct {
	dir string

	mu  sync.Mutex
	all map[string]Image // by ID; guarded by mu
}

// OpenImages returns the images whose files are in dir. Pods of one node may share the directory, because the name of a
// file is the digest of its content.
func OpenImages(dir string) (*Images, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, errors.Wrapf(err, "make the directory of images")
	}
	return &Images{dir: dir, all: map[string]Image{}}, nil
}

// digestForm is the form of a digest, which is also a file name.
var digestForm = regexp.MustCompile(`^[0-9a-f]{64}$`)

// has reports whether the file with the digest is there.
func (i *Images) has(digest string) bool {
	_, err := os.Stat(i.path(digest))
	return err == nil
}

func (i *Images) path(digest string) string { return filepath.Join(i.dir, digest) }

// add adds an image whose files are there.
func (i *Images) add(img Image) error {
	digests := []string{img.Root}
	if img.Layer != "" {
		digests = append(digests, img.Layer)
	}
	for _, digest := range digests {
		if !digestForm.MatchString(digest) {
			return errors.Errorf("%q is not a digest", digest)
		}
		if !i.has(digest) {
			return errors.Errorf("the image %s has no file %s yet", img.ID, digest)
		}
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	i.all[img.ID] = img
	return nil
}

// receive stores the file with the digest, whose content the client sends unless the file is there.
func (i *Images) receive(conn *wire.Conn, digest string) error {
	if !digestForm.MatchString(digest) {
		return errors.Errorf("%q is not a digest", digest)
	}
	has := i.has(digest)
	if err := conn.SendJSON(wire.KindReply, wire.Reply{Input: &wire.Input{Ended: has}}); err != nil || has {
		return err
	}
	f, err := os.CreateTemp(i.dir, "new-")
	if err != nil {
		return errors.Wrapf(err, "store a file of an image")
	}
	defer os.Remove(f.Name()) // it has another name by then, if all went well
	defer f.Close()
	sum := sha256.New()
	if err := receiveInput(conn, io.MultiWriter(f, sum)); err != nil {
		return err
	}
	if got := hex.EncodeToString(sum.Sum(nil)); got != digest {
		return errors.Errorf("the file %s arrived with the digest %s", digest, got)
	}
	if err := os.Rename(f.Name(), i.path(digest)); err != nil {
		return errors.Wrapf(err, "store a file of an image")
	}
	return conn.SendJSON(wire.KindReply, wire.Reply{})
}

// receiveInput writes the client's input to w. It also reads the rest after an error of w, so that the client can read
// the error.
func receiveInput(conn *wire.Conn, w io.Writer) error {
	var failed error
	for {
		kind, payload, err := conn.Next()
		if err != nil {
			return errors.Explainf(err, errors.Unavailable, "the connection to the server broke")
		}
		switch kind {
		case wire.KindStdin:
			if failed == nil {
				_, failed = io.Copy(w, payload)
			}
			_, err = io.Copy(io.Discard, payload)
		case wire.KindStdinEnd:
			return errors.Wrapf(failed, "store a file of an image")
		default:
			return errors.Errorf("unexpected frame %q in a file", kind)
		}
		if err != nil {
			return errors.Explainf(err, errors.Unavailable, "the connection to the server broke")
		}
	}
}

// image returns the image with the ID in the form of package image.
func (i *Images) image(id string) (Image, bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	img, ok := i.all[id]
	return img, ok
}

// Find implements image.Builder. Only whole IDs are known here.
func (i *Images) Find(_ context.Context, id string) (image.Image, error) {
	img, ok := i.image(id)
	if !ok {
		return image.Image{}, errors.Newf(errors.NotFound, "the pod has no image %q", id)
	}
	found := image.Image{ID: img.ID, Config: img.Config}
	if img.Layer != "" {
		found.Snapshot = &image.Snapshot{}
	}
	return found, nil
}

// Root returns the path of the image's EROFS file.
func (i *Images) Root(img image.Image) string {
	described, _ := i.image(img.ID)
	return i.path(described.Root)
}

// Layer returns the path of a snapshot's changes, or "".
func (i *Images) Layer(img image.Image) string {
	described, _ := i.image(img.ID)
	if described.Layer == "" {
		return ""
	}
	return i.path(described.Layer)
}

// Use returns a function without effect: the files stay as long as the pod.
func (i *Images) Use(string, string) (release func(), err error) { return func() {}, nil }

// List implements image.Builder.
func (i *Images) List(context.Context) ([]image.Image, error) { return nil, nil }

// Build implements image.Builder.
func (i *Images) Build(context.Context, image.Spec, image.BuildOptions) (image.Image, error) {
	return image.Image{}, errors.Newf(errors.Unsupported, "a pod builds no images")
}

// Delete implements image.Builder.
func (i *Images) Delete(context.Context, string) error {
	return errors.Newf(errors.Unsupported, "a pod deletes no images")
}
