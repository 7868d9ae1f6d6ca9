package modal

import (
	"archive/tar"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"os"
	"path"
	"path/filepath"
	"strings"

	pb "github.com/modal-labs/modal-client/go/proto/modal_proto"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/tarfs"
	"github.com/RelevanceAI/harvest/internal/modal/localfiles"
)

// contextPrefix is the name prefix of tar files with build contexts.
const contextPrefix = "context-"

// digestOfFiles returns a digest of the files of a build context; "" without files. Invalid if the path of a
// file is outside the context.
func digestOfFiles(files []*pb.ImageContextFile) (string, error) {
	if len(files) == 0 {
		return "", nil
	}
	sums := make([][2]string, len(files))
	for i, f := range files {
		name := contextName(f)
		if name == "" {
			return "", errors.Newf(errors.Invalid, "invalid name of a context file: %.100q", f.GetFilename())
		}
		sum := sha256.Sum256(f.GetData())
		sums[i] = [2]string{name, hex.EncodeToString(sum[:])}
	}
	text, err := json.Marshal(sums)
	return string(text), errors.Wrapf(err, "encode the files of an image")
}

// contextName returns a file's path within the build context, "" if the path is empty or leads out of the
// context.
func contextName(f *pb.ImageContextFile) string {
	name := strings.TrimPrefix(path.Clean("/"+f.GetFilename()), "/")
	if strings.ContainsRune(f.GetFilename(), 0) || strings.Contains("/"+f.GetFilename()+"/", "/../") {
		return ""
	}
	return name
}

// pack writes the files of a build context, and those of a mount that have other names, to a tar file. The caller calls
// remove after the build. Without files, pack writes no tar file and returns "".
func (s *Server) pack(acc string, files []*pb.ImageContextFile,
	mount localfiles.Mount) (name string, remove func(), err error) {
	if len(files) == 0 && len(mount.Files) == 0 {
		return "", func() {}, nil
	}
	f, err := os.CreateTemp(s.opts.Dir, contextPrefix+"*.tar")
	if err != nil {
		return "", nil, errors.Wrapf(err, "make a build context")
	}
	remove = func() { _ = os.Remove(f.Name()) } // otherwise the next start removes it
	tw := tar.NewWriter(f)
	own := map[string]bool{}
	for _, file := range files {
		own[contextName(file)] = true
	}
	err = s.uploads.mounts.Pack(s.ctx, acc, mount, tw, nowTime(), func(name string) bool { return own[name] })
	for _, file := range files {
		if err == nil {
			err = tw.WriteHeader(&tar.Header{Name: contextName(file), Typeflag: tar.TypeReg, Mode: 0o644,
				Size: int64(len(file.GetData())), ModTime: nowTime()})
		}
		if err == nil {
			_, err = tw.Write(file.GetData())
		}
	}
	if err = errors.Join(err, tw.Close(), f.Close()); err != nil {
		remove()
		return "", nil, tarfs.Explain(err, "the build context")
	}
	return f.Name(), remove, nil
}

// removeContexts removes the files of interrupted builds.
func (s *Server) removeContexts() {
	left, _ := filepath.Glob(filepath.Join(s.opts.Dir, contextPrefix+"*")) // the pattern is valid
	for _, name := range left {
		_ = os.Remove(name) // best effort: the next start retries
	}
}
