package blobs

import (
	"context"
	"crypto/md5"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/atomicfile"
	"github.com/RelevanceAI/harvest/internal/base/pattern"
)

// An upload in parts is a directory with the file, a description, and a file with the MD5 of each complete part.
const (
	dataFile  = "data"
	infoFile  = "upload.json"
	partFile  = "part-"
	leastPart = 64 << 20
	mostParts = 200 // clients open the file once for each part
)

var uploadPattern = pattern.New(`^[A-Z2-7]{26}$`)

// Upload describes an upload in parts.
type Upload struct {
	Sum  string `json:"sha256"`
	Size int64  `json:"size"`
	Part int64  `json:"part"` // bytes of each part but the last one
}

// Parts returns the number of parts, at least one.
func (u Upload) Parts() int { return int(max(1, (u.Size+u.Part-1)/u.Part)) }

// length returns the number of bytes of a part; parts count from 1.
func (u Upload) length(part int) int64 { return min(u.Part, u.Size-int64(part-1)*u.Part) }

// Begin starts an upload of a blob and returns its name. The upload survives a restart of the process.
func (s *Store) Begin(account, sum string, size int64) (name string, up Upload, err error) {
	if err := check(account, sum); err != nil {
		return "", up, err
	}
	if err := s.allowed(size); err != nil {
		return "", up, err
	}
	up = Upload{Sum: sum, Size: size, Part: max(leastPart, (size/mostParts|(1<<20-1))+1)}
	if err := s.reserve(account, size, 1); err != nil {
		return "", up, err
	}
	name = rand.Text()
	dir := s.path(account, uploadDir, name)
	text, err := json.Marshal(up)
	if err == nil {
		err = os.MkdirAll(dir, 0o700)
	}
	if err == nil {
		err = os.WriteFile(s.path(account, uploadDir, name, dataFile), nil, 0o600)
	}
	if err == nil { // last, so that an upload with it is whole
		err = atomicfile.Write(s.path(account, uploadDir, name, infoFile), text, 0o600)
	}
	if err != nil {
		_ = s.reserve(account, -size, -1)
		return "", up, errors.Join(full(err), os.RemoveAll(dir))
	}
	return name, up, nil
}

// upload returns the description of an upload, or NotFound.
func (s *Store) upload(account, name string) (up Upload, err error) {
	if !uploadPattern().MatchString(name) || !accountPattern().MatchString(account) {
		return up, ended(os.ErrNotExist)
	}
	text, err := os.ReadFile(s.path(account, uploadDir, name, infoFile))
	if err == nil {
		err = json.Unmarshal(text, &up)
	}
	if err == nil && (up.Part <= 0 || up.Size < 0) {
		err = errors.Errorf("the description of an upload is damaged")
	}
	return up, ended(err)
}

func ended(err error) error {
	if errors.IsNotExist(err) {
		return errors.Remedy(errors.Explainf(err, errors.NotFound, "the upload has ended"), "upload the file again")
	}
	return errors.Wrapf(err, "read an upload")
}

// WritePart stores a part and returns its MD5 in hexadecimal digits. Invalid if its length is wrong. Parts may come in
// any order, and more than once.
func (s *Store) WritePart(ctx context.Context, account, name string, part int, r io.Reader) (string, error) {
	up, err := s.upload(account, name)
	if err != nil {
		return "", err
	}
	if part < 1 || part > up.Parts() {
		return "", errors.Newf(errors.Invalid, "the upload has %d parts, but no part %d", up.Parts(),
			part)
	}
	if err := s.room(up.length(part)); err != nil {
		return "", err
	}
	f, err := os.OpenFile(s.path(account, uploadDir, name, dataFile), os.O_WRONLY, 0)
	if err != nil {
		return "", ended(err)
	}
	defer f.Close()
	h := md5.New() // the protocol uses MD5 against mistakes; the SHA-256 of the whole file detects all other changes
	to := io.NewOffsetWriter(f, int64(part-1)*up.Part)
	size, err := io.Copy(io.MultiWriter(to, h), io.LimitReader(reader{ctx, r}, up.length(part)))
	if err != nil {
		return "", full(err)
	}
	if more, _ := io.CopyN(io.Discard, r, 1); more > 0 || size != up.length(part) {
		return "", errors.Newf(errors.Invalid, "part %d does not have %d bytes", part, up.length(part))
	}
	etag := hex.EncodeToString(h.Sum(nil))
	file := s.path(account, uploadDir, name, partFile+strconv.Itoa(part))
	if err := atomicfile.Write(file, []byte(etag), 0o600); err != nil {
		return "", ended(err)
	}
	now := time.Now()
	_ = os.Chtimes(s.path(account, uploadDir, name), now, now) // otherwise it ends earlier
	return etag, nil
}

// Complete makes the parts with the given MD5s the blob. It returns the MD5 of the MD5s, as S3 does. Invalid if parts
// are missing, or if the SHA-256 of the content is not the one that Begin received. The upload then remains, so that
// parts can be sent again. Complete is idempotent.
func (s *Store) Complete(ctx context.Context, account, name, sum string, etags []string) (string, error) {
	all := md5.New()
	for _, etag := range etags {
		raw, err := hex.DecodeString(etag)
		if err != nil || len(raw) != md5.Size {
			return "", errors.Newf(errors.Invalid, "%.100q is not the ETag of a part", etag)
		}
		all.Write(raw)
	}
	whole := fmt.Sprintf("%x-%d", all.Sum(nil), len(etags))
	up, err := s.upload(account, name)
	if errors.KindOf(err) == errors.NotFound && s.Has(account, sum) { // the answer was lost
		return whole, nil
	}
	if err != nil {
		return "", err
	}
	if len(etags) != up.Parts() || up.Sum != sum {
		return "", errors.Newf(errors.Invalid, "the upload has %d parts, not %d", up.Parts(), len(etags))
	}
	for i, etag := range etags {
		have, err := os.ReadFile(s.path(account, uploadDir, name, partFile+strconv.Itoa(i+1)))
		if err != nil || !strings.EqualFold(string(have), etag) {
			return "", errors.Newf(errors.Invalid, "the part %d is missing or has changed", i+1)
		}
	}
	data := s.path(account, uploadDir, name, dataFile)
	got, err := sumOf(ctx, data)
	if err != nil {
		return "", err
	}
	if got != up.Sum {
		return "", errors.Newf(errors.Invalid, "the content has the SHA-256 %s, not %s", got, up.Sum)
	}
	if err := os.MkdirAll(s.path(account, blobDir), 0o700); err != nil {
		return "", errors.Wrapf(err, "make the directory of blobs")
	}
	s.completing.Lock()
	defer s.completing.Unlock()
	if _, err := os.Stat(data); err != nil { // a concurrent call has completed it
		return whole, nil
	}
	if err := s.keep(account, sum, data, up.Size); err != nil {
		return "", err
	}
	_ = s.reserve(account, 0, -1) // releasing never fails
	now := time.Now()
	_ = os.Chtimes(s.path(account, blobDir, sum), now, now) // its life begins now
	// the next start retries
	return whole, errors.Wrapf(os.RemoveAll(s.path(account, uploadDir, name)), "end an upload")
}

func sumOf(ctx context.Context, name string) (string, error) {
	f, err := os.Open(name)
	if err != nil {
		return "", ended(err)
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, reader{ctx, f}); err != nil {
		return "", errors.Wrapf(err, "read an upload")
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// sweepUploads removes uploads that do not continue.
func (s *Store) sweepUploads(now time.Time, account string) {
	begun, _ := os.ReadDir(s.path(account, uploadDir)) // unreadable entries stay
	for _, e := range begun {
		info, err := e.Info()
		if err != nil || now.Sub(info.ModTime()) <= s.limits.Upload {
			continue
		}
		up, err := s.upload(account, e.Name())
		if os.RemoveAll(s.path(account, uploadDir, e.Name())) == nil && err == nil {
			_ = s.reserve(account, -up.Size, -1) // releasing never fails
		}
	}
}
