package oldfiles

import (
	"math"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/RelevanceAI/harvest/client/errors"
)

// The generated stubs lack the messages of one method, ContainerFilesystemExecGetOutput, so they are encoded here. Its
// request has the fields exec_id (1) and timeout (2).

// ParseRequest reads the message of a request for a result. timeout is in seconds.
func ParseRequest(data []byte) (id string, timeout float32, err error) {
	invalid := errors.Newf(errors.Invalid, "invalid request for a result")
	for len(data) > 0 {
		field, kind, n := protowire.ConsumeTag(data)
		if n < 0 {
			return "", 0, invalid
		}
		data = data[n:]
		switch {
		case field == 1 && kind == protowire.BytesType:
			id, n = protowire.ConsumeString(data)
		case field == 2 && kind == protowire.Fixed32Type:
			var bits uint32
			bits, n = protowire.ConsumeFixed32(data)
			timeout = math.Float32frombits(bits)
		default:
			n = protowire.ConsumeFieldValue(field, kind, data)
		}
		if n < 0 {
			return "", 0, invalid
		}
		data = data[n:]
	}
	return id, timeout, nil
}

// Message encodes a part of a result: output (1), error (2) with its code (1) and message (2), batch_index (3) and
// eof (4).
func (b Batch) Message(index uint64) (data []byte) {
	if b.Output != nil {
		data = protowire.AppendBytes(protowire.AppendTag(data, 1, protowire.BytesType), b.Output)
	}
	if b.Failed != nil {
		var inner []byte
		if b.Failed.Code != 0 {
			inner = protowire.AppendVarint(protowire.AppendTag(inner, 1, protowire.VarintType), uint64(b.Failed.Code))
		}
		inner = protowire.AppendString(protowire.AppendTag(inner, 2, protowire.BytesType), b.Failed.Message)
		data = protowire.AppendBytes(protowire.AppendTag(data, 2, protowire.BytesType), inner)
	}
	data = protowire.AppendVarint(protowire.AppendTag(data, 3, protowire.VarintType), index)
	if b.EOF {
		data = protowire.AppendVarint(protowire.AppendTag(data, 4, protowire.VarintType), 1)
	}
	return data
}
