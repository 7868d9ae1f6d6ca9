package gateway

import "golang.org/x/crypto/cryptobyte"

// Types of TLS records (RFC 8446).
const (
	recordChange      = 20
	recordHandshake   = 22
	recordApplication = 23
)

// maxHello limits the size of a ClientHello in bytes. With post-quantum keys, its usual size is about two
// thousand.
const maxHello = 32 << 10

// maxHelloRecords limits the number of records of a ClientHello.
const maxHelloRecords = 128

// maxEarlyData limits the data between a first ClientHello and a second one, which answers a HelloRetryRequest.
const maxEarlyData = 256 << 10

// tlsState is the state of an Inspector in a TLS stream.
type tlsState struct {
	hello bool // a ClientHello was seen
	early bool // the ClientHello announced early data
	since int  // bytes since the first ClientHello
	need  int  // size of held at which to parse a message again
}

// record handles a TLS record. It continues after the first ClientHello until no more plaintext can follow,
// because the server may request a second ClientHello, whose name then counts.
func (i *Inspector) record() (int, error) {
	const headerSize = 5
	if len(i.held) < headerSize {
		return 0, nil
	}
	size := headerSize + int(i.held[3])<<8 + int(i.held[4])
	switch kind := i.held[0]; {
	case i.held[1] != 3 || size > headerSize+16384+256:
		return 0, malformed("a TLS ClientHello")
	case kind == recordChange && i.tls.hello && size == headerSize+1:
		if len(i.held) < size {
			return 0, nil
		}
		return size, nil
	case kind == recordApplication && i.tls.hello:
		if i.tls.since += size; !i.tls.early || i.tls.since > maxEarlyData {
			return i.finish()
		}
		i.pass = int64(size) - headerSize
		return headerSize, nil
	case kind != recordHandshake:
		if i.tls.hello {
			return i.finish() // an alert
		}
		return 0, malformed("a TLS ClientHello")
	}
	return i.gather(headerSize)
}

// gather handles the handshake records at the beginning of held that together contain one message.
func (i *Inspector) gather(headerSize int) (int, error) {
	var m []byte
	n := 0
	if len(i.held) < i.tls.need {
		return 0, nil
	}
	for count := 0; ; count++ {
		rest := i.held[n:]
		if len(rest) < headerSize {
			return i.await(n + headerSize)
		}
		if count > maxHelloRecords {
			return 0, malformed("a TLS ClientHello")
		}
		size := headerSize + int(rest[3])<<8 + int(rest[4])
		if rest[0] != recordHandshake || rest[1] != 3 || size == headerSize {
			return 0, malformed("a TLS ClientHello")
		}
		if len(rest) < size {
			return i.await(n + size)
		}
		m = append(m, rest[headerSize:size]...)
		n += size
		// After the first ClientHello comes a second one, or the rest of an older handshake, possibly
		// encrypted.
		if i.tls.hello && (m[0] != 1 || len(m) >= 6 && (m[1] != 0 || m[4] != 3)) {
			return i.finish()
		}
		if len(m) >= 4 {
			if m[0] != 1 {
				return 0, malformed("a TLS ClientHello")
			}
			length := int(m[1])<<16 | int(m[2])<<8 | int(m[3])
			if length > maxHello {
				return 0, malformed("a TLS ClientHello")
			}
			if len(m) >= 4+length {
				break
			}
		}
	}
	hello, ok := parseClientHello(m)
	if !ok {
		return 0, malformed("a TLS ClientHello")
	}
	if err := i.helloNames(hello); err != nil {
		return 0, err
	}
	i.tls.need = 0
	i.tls.hello, i.tls.early = true, i.tls.early || hello.early
	return n, nil
}

// await postpones parsing until held has need bytes.
func (i *Inspector) await(need int) (int, error) {
	i.tls.need = need
	return 0, nil
}

// helloNames decides on a ClientHello of TLS or QUIC.
func (i *Inspector) helloNames(h clientHello) error {
	if h.encrypted {
		if err := i.hidden("the connection hides the server's name (ECH); turn Encrypted ClientHello off in the " +
			"program that connects"); err != nil {
			return err
		}
	}
	name := h.name
	if name == "" && i.Address != "" && i.decide(i.Address, 0).Intercept {
		name = i.Address
	}
	if name == "" {
		return i.hidden("the TLS connection does not name a server")
	}
	if err := i.name(name, 0); err != nil {
		return err
	}
	if i.over != nil {
		i.over.TLS = true
	}
	return nil
}

// clientHello holds the relevant fields of a TLS ClientHello.
type clientHello struct {
	name      string
	encrypted bool // it contains an encrypted one
	early     bool
}

// TLS extensions (https://www.iana.org/assignments/tls-extensiontype-values).
const (
	extServerName = 0
	extEarlyData  = 42
	extECH        = 0xfe0d
	extESNI       = 0xffce
)

// parseClientHello parses a handshake message. It returns false if that is not a ClientHello, or if its name is
// ambiguous.
func parseClientHello(m []byte) (h clientHello, ok bool) {
	s := cryptobyte.String(m)
	var kind uint8
	var body, ignored, extensions cryptobyte.String
	if !s.ReadUint8(&kind) || kind != 1 || !s.ReadUint24LengthPrefixed(&body) || !s.Empty() ||
		!body.Skip(2+32) || !body.ReadUint8LengthPrefixed(&ignored) || !body.ReadUint16LengthPrefixed(&ignored) ||
		!body.ReadUint8LengthPrefixed(&ignored) {
		return h, false
	}
	if body.Empty() {
		return h, true
	}
	if !body.ReadUint16LengthPrefixed(&extensions) || !body.Empty() {
		return h, false
	}
	seen := map[uint16]bool{}
	for !extensions.Empty() {
		var ext uint16
		var data cryptobyte.String
		if !extensions.ReadUint16(&ext) || !extensions.ReadUint16LengthPrefixed(&data) || seen[ext] {
			return h, false
		}
		seen[ext] = true
		switch ext {
		case extServerName:
			var list, name cryptobyte.String
			var nameType uint8
			if !data.ReadUint16LengthPrefixed(&list) || !data.Empty() || !list.ReadUint8(&nameType) || nameType != 0 ||
				!list.ReadUint16LengthPrefixed(&name) || name.Empty() || !list.Empty() {
				return h, false
			}
			h.name = string(name)
		case extECH, extESNI:
			h.encrypted = true
		case extEarlyData:
			h.early = true
		}
	}
	return h, true
}
