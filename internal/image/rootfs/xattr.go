package rootfs

import (
	"archive/tar"
	"encoding/binary"
	"encoding/json"
	"strings"

	"github.com/RelevanceAI/harvest/client/errors"
)

// Extended attributes are stored after the blocks of the file system, which drivers ignore: JSON by
// inode number, then its length and a mark. An image without attributes ends with its blocks.

const (
	xattrMark   = "HVXATTR1"
	xattrFooter = 8 + len(xattrMark)
	maxXattrs   = 256 << 20 // bytes of all attributes of an image as JSON
	paxXattr    = "SCHILY.xattr."
)

// foreign are attributes that are valid only on the machine where the archive was made.
var foreign = []string{"trusted.", "security.selinux", "security.ima", "security.evm", "security.SMACK64",
	"user.rootlesscontainers", "user.overlay.", "system.nfs4_acl"}

// attributes returns the portable extended attributes of an entry.
func attributes(hdr *tar.Header) map[string]string {
	var all map[string]string
next:
	for key, value := range hdr.PAXRecords {
		name, ok := strings.CutPrefix(key, paxXattr)
		if !ok || name == "" {
			continue
		}
		for _, prefix := range foreign {
			if strings.HasPrefix(name, prefix) {
				continue next
			}
		}
		if all == nil {
			all = map[string]string{}
		}
		all[name] = value
	}
	return all
}

// attributes writes the attributes of all files.
func (w *Writer) attributes(order []*node) error {
	all := map[uint64]map[string][]byte{}
	for _, n := range order {
		for name, value := range n.xattrs {
			if all[n.nid] == nil {
				all[n.nid] = map[string][]byte{}
			}
			all[n.nid][name] = []byte(value) // JSON encodes it as base64
		}
	}
	if len(all) == 0 {
		return nil
	}
	text, err := json.Marshal(all) // keys are sorted
	if err != nil {
		return errors.Wrapf(err, "encode extended attributes")
	}
	if len(text) > maxXattrs {
		return errors.Newf(errors.Exhausted, "the image's files have too many extended attributes")
	}
	text = binary.LittleEndian.AppendUint64(text, uint64(len(text)))
	return w.out.write(append(text, xattrMark...))
}

// readAttributes sets the attributes of all files.
func (r *Reader) readAttributes(blocks int64) error {
	if r.size == blocks<<blockBits {
		return nil
	}
	footer := make([]byte, xattrFooter)
	if err := r.readAt(footer, r.size-int64(len(footer))); err != nil {
		return err
	}
	length := binary.LittleEndian.Uint64(footer)
	if string(footer[8:]) != xattrMark || length > maxXattrs ||
		int64(length) != r.size-blocks<<blockBits-int64(len(footer)) {
		return damaged("unknown data follows its file system")
	}
	text := make([]byte, length)
	if err := r.readAt(text, blocks<<blockBits); err != nil {
		return err
	}
	all := map[uint64]map[string][]byte{}
	if err := json.Unmarshal(text, &all); err != nil {
		return errors.Explainf(err, errors.Invalid, "the image is damaged: its extended attributes cannot be read")
	}
	for nid, attrs := range all {
		n := r.nodes[nid]
		if n == nil {
			return damaged("attributes of a file that does not exist")
		}
		n.xattrs = map[string]string{}
		for name, value := range attrs {
			if name == "" || strings.ContainsAny(name, "=\x00") {
				return damaged("an attribute's name")
			}
			n.xattrs[name] = string(value)
		}
	}
	return nil
}
