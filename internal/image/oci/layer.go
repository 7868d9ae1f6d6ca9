package oci

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"hash"
	"io"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"

	"github.com/RelevanceAI/harvest/client/errors"
)

const (
	// maxWindow is the maximum window of a zstd frame; "zstd --ultra --long" needs 128 MiB.
	maxWindow = 128 << 20
	ahead     = 4 // buffers decompressed ahead of the reader
	aheadSize = 256 << 10
)

// layer is the tar stream of a layer, decompressed in another goroutine.
type layer struct {
	want   v1.Hash
	sum    hash.Hash
	filled chan []byte // closed at the end
	empty  chan []byte
	quit   chan struct{}
	err    error // the final error; valid when filled is closed

	now  []byte // rest of the current buffer
	back []byte // the current buffer
}

// openLayer begins to decompress a layer. Its first bytes determine the format. The caller must
// call finish.
func openLayer(ctx context.Context, f io.Reader, diffID v1.Hash) (*layer, error) {
	in, closeIn, err := decompress(f)
	if err != nil {
		return nil, err
	}
	l := &layer{want: diffID, sum: sha256.New(), filled: make(chan []byte, ahead), empty: make(chan []byte, ahead),
		quit: make(chan struct{})}
	for range ahead {
		l.empty <- make([]byte, aheadSize)
	}
	go func() {
		defer close(l.filled)
		defer closeIn()
		l.err = l.fill(ctx, in)
	}()
	return l, nil
}

func decompress(f io.Reader) (io.Reader, func(), error) {
	in := bufio.NewReaderSize(f, 1<<20)
	magic, err := in.Peek(4)
	if err != nil && err != io.EOF {
		return nil, nil, errors.Wrapf(err, "read a layer")
	}
	switch {
	case bytes.HasPrefix(magic, []byte{0x1f, 0x8b}):
		z, err := gzip.NewReader(in)
		if err != nil {
			return nil, nil, unreadable(err)
		}
		return z, func() { z.Close() }, nil
	case bytes.HasPrefix(magic, []byte{0x28, 0xb5, 0x2f, 0xfd}), len(magic) == 4 && magic[0]&0xf0 == 0x50 &&
		bytes.Equal(magic[1:], []byte{0x2a, 0x4d, 0x18}):
		z, err := zstd.NewReader(in, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(maxWindow))
		if err != nil {
			return nil, nil, unreadable(err)
		}
		return z, z.Close, nil
	}
	return in, func() {}, nil
}

func unreadable(err error) error {
	return errors.Explainf(err, errors.Invalid, "a layer of the image cannot be decompressed")
}

func (l *layer) fill(ctx context.Context, in io.Reader) error {
	for {
		var buf []byte
		select {
		case buf = <-l.empty:
		case <-l.quit:
			return io.ErrClosedPipe
		case <-ctx.Done():
			return errors.Wrapf(context.Cause(ctx), "decompress a layer")
		}
		n, err := io.ReadFull(in, buf[:aheadSize])
		l.sum.Write(buf[:n])
		if n > 0 {
			l.filled <- buf[:n]
		}
		switch {
		case err == io.EOF || err == io.ErrUnexpectedEOF && n < aheadSize && isEnd(in):
			return nil
		case err != nil:
			return unreadable(err)
		}
	}
}

// isEnd distinguishes the end of the stream from a truncated one: ReadFull returns the same error
// for both.
func isEnd(in io.Reader) bool {
	n, err := in.Read(make([]byte, 1))
	return n == 0 && err == io.EOF
}

func (l *layer) Read(p []byte) (int, error) {
	if len(l.now) == 0 {
		if l.back != nil {
			l.empty <- l.back
			l.back = nil
		}
		buf, ok := <-l.filled
		if !ok {
			if l.err != nil {
				return 0, l.err
			}
			return 0, io.EOF
		}
		l.now, l.back = buf, buf
	}
	n := copy(p, l.now)
	l.now = l.now[n:]
	return n, nil
}

// finish ends the decompression. If the layer was read successfully, it also reads the rest, and
// checks the whole against the digest in the image's configuration.
func (l *layer) finish(well bool) error {
	if !well {
		close(l.quit)
		for range l.filled {
		}
		return nil
	}
	if _, err := io.Copy(io.Discard, l); err != nil {
		return err
	}
	if hex.EncodeToString(l.sum.Sum(nil)) != l.want.Hex {
		return errors.Newf(errors.Invalid, "a layer does not match the image's configuration")
	}
	return nil
}
