package gateway

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/sha256"
	"slices"

	"golang.org/x/crypto/cryptobyte"
)

// quicVersion holds the parameters of a QUIC version that its first packets need.
type quicVersion struct {
	number         uint32
	salt           string
	key, iv, hp    string
	initial, retry byte // types of long header packets
}

// quicVersions are the versions of RFC 9001 and RFC 9369.
var quicVersions = []quicVersion{
	{1, "\x38\x76\x2c\xf7\xf5\x59\x34\xb3\x4d\x17\x9a\xe6\xa4\xc8\x0c\xad\xcc\xbb\x7f\x0a", "quic key", "quic iv",
		"quic hp", 0, 3},
	{0x6b3343cf, "\x0d\xed\xe3\xde\xf7\x00\xa6\xdb\x81\x93\x81\xbe\x6e\x26\x9d\xcb\xf9\xbd\x2e\xd9", "quicv2 key",
		"quicv2 iv", "quicv2 hp", 1, 0},
}

// maxHeldDatagrams limits the datagrams of a flow that are held until its ClientHello is complete.
// maxQUICConnections limits the connections on one flow.
const (
	maxHeldDatagrams   = 16
	maxQUICConnections = 32
)

// DatagramInspector reads the data that a client sends on a UDP flow. It holds back datagrams until the names
// in them are known. QUIC sends names in its first packets, encrypted with a key that is derived from the same
// packets. The inspector also reads each further QUIC connection on the flow. It must be used by one goroutine
// only.
type DatagramInspector struct {
	i     *Inspector
	quic  bool // the flow must be QUIC
	known bool // a ClientHello was allowed, or the flow is not QUIC
	held  [][]byte
	conns []*quicConn
}

// quicConn is a QUIC connection whose ClientHello is incomplete or was allowed.
type quicConn struct {
	dcid    string
	version uint32
	keys    quicKeys
	crypto  []byte // handshake data from offset 0; have marks the bytes received
	have    []bool
	allowed bool
}

type quicKeys struct {
	aead cipher.AEAD
	iv   []byte
	hp   cipher.Block
}

// NewDatagramInspector returns an inspector for a flow to port. It calls decide for each name in the flow.
func NewDatagramInspector(check Check, port uint16, decide Decide) *DatagramInspector {
	overTCP := func(name string, port uint16) Verdict {
		v := decide(name, port)
		if v.Allowed && v.Intercept {
			return deny("connections to hosts with credentials use TCP, not QUIC")
		}
		return v
	}
	return &DatagramInspector{i: NewInspector(check, overTCP), quic: check == CheckAllowed && port == 443,
		known: check == CheckNothing}
}

// Next takes the next datagram, and returns those to forward now, in order. An error is a *Refusal: then
// nothing more of the flow may be forwarded.
func (d *DatagramInspector) Next(p []byte) ([][]byte, error) {
	if d.i.check == CheckNothing {
		return [][]byte{p}, nil
	}
	initial, err := d.packets(p)
	if err != nil {
		return nil, err
	}
	switch {
	case !initial && d.known:
		return [][]byte{p}, nil
	case !initial && len(d.conns) == 0:
		if d.quic {
			return nil,
				&Refusal{Reason: "the packets to UDP port 443 are not QUIC with a readable server name; use TCP"}
		}
		d.known = true
		return [][]byte{p}, nil
	}
	d.held = append(d.held, slices.Clone(p))
	if slices.ContainsFunc(d.conns, func(c *quicConn) bool { return !c.allowed }) {
		if len(d.held) > maxHeldDatagrams {
			return nil, &Refusal{Reason: "the QUIC connection does not name its host in time"}
		}
		return nil, nil
	}
	d.known = true
	out := d.held
	d.held = nil
	return out, nil
}

// packets reads the packets of a datagram. It reports whether one is an Initial packet of a connection that is
// not allowed yet.
func (d *DatagramInspector) packets(p []byte) (initial bool, err error) {
	for len(p) > 0 {
		pkt, rest, ok := parseLong(p)
		if !ok {
			return initial, nil
		}
		if pkt.initial {
			fresh, err := d.initial(pkt)
			if err != nil {
				return false, err
			}
			initial = initial || fresh
		}
		p = rest
	}
	return initial, nil
}

// longPacket is a QUIC packet with a long header.
type longPacket struct {
	version *quicVersion
	initial bool
	dcid    string
	all     []byte // the whole packet
	number  int    // offset of the protected packet number
}

// parseLong splits the first packet off a datagram. It returns false unless that has a long header of a known
// version.
func parseLong(p []byte) (pkt longPacket, rest []byte, ok bool) {
	s := cryptobyte.String(p)
	var first uint8
	var number uint32
	var dcid, scid cryptobyte.String
	if !s.ReadUint8(&first) || first&0x80 == 0 || !s.ReadUint32(&number) || !s.ReadUint8LengthPrefixed(&dcid) ||
		!s.ReadUint8LengthPrefixed(&scid) {
		return pkt, nil, false
	}
	v := slices.IndexFunc(quicVersions, func(v quicVersion) bool { return v.number == number })
	if v < 0 || len(dcid) > 20 || len(scid) > 20 {
		return pkt, nil, false
	}
	pkt.version, pkt.dcid = &quicVersions[v], string(dcid)
	kind := first >> 4 & 3
	if kind == pkt.version.retry { // sent only by servers; has no length field
		return pkt, nil, true
	}
	pkt.initial = kind == pkt.version.initial
	var n uint64
	if pkt.initial && (!readVarint(&s, &n) || n > uint64(len(s)) || !s.Skip(int(n))) {
		return pkt, nil, false
	}
	if !readVarint(&s, &n) || n > uint64(len(s)) {
		return pkt, nil, false
	}
	pkt.number = len(p) - len(s)
	pkt.all = p[:pkt.number+int(n)]
	return pkt, p[len(pkt.all):], true
}

// readVarint reads a variable-length integer (RFC 9000, section 16).
func readVarint(s *cryptobyte.String, n *uint64) bool {
	var first uint8
	if !s.ReadUint8(&first) {
		return false
	}
	*n = uint64(first & 0x3f)
	for range 1<<(first>>6) - 1 {
		var b uint8
		if !s.ReadUint8(&b) {
			return false
		}
		*n = *n<<8 | uint64(b)
	}
	return true
}

// initial handles an Initial packet, of a known or a new connection. All Initial packets of a connection are
// encrypted with the keys of its first one.
func (d *DatagramInspector) initial(pkt longPacket) (fresh bool, err error) {
	for _, c := range d.conns {
		if frames, ok := c.keys.open(pkt); ok && c.version == pkt.version.number {
			if c.allowed {
				return false, nil
			}
			return true, d.gather(c, frames)
		}
	}
	c := &quicConn{dcid: pkt.dcid, version: pkt.version.number}
	if c.keys, err = newQUICKeys(pkt.version, pkt.dcid); err != nil {
		return false, malformed("a QUIC packet")
	}
	frames, ok := c.keys.open(pkt)
	if !ok {
		if d.known && !d.quic {
			return false, nil // not QUIC after all
		}
		return false, malformed("a QUIC packet")
	}
	if len(d.conns) >= maxQUICConnections {
		return false, &Refusal{Reason: "too many QUIC connections on one flow"}
	}
	d.conns = append(d.conns, c)
	return true, d.gather(c, frames)
}

// gather collects the ClientHello from the frames of Initial packets, and decides when it is complete.
func (d *DatagramInspector) gather(c *quicConn, frames []byte) error {
	s := cryptobyte.String(frames)
	for !s.Empty() {
		var kind, offset, length uint64
		if !readVarint(&s, &kind) {
			return malformed("a QUIC packet")
		}
		switch kind {
		case 0, 1: // PADDING, PING
		case 2, 3: // ACK
			if !skipAck(&s, kind == 3) {
				return malformed("a QUIC packet")
			}
		case 6: // CRYPTO
			var data []byte
			if !readVarint(&s, &offset) || !readVarint(&s, &length) || length > uint64(len(s)) ||
				!s.ReadBytes(&data, int(length)) || offset+length > maxHello {
				return malformed("a QUIC packet")
			}
			c.put(int(offset), data)
		case 0x1c: // CONNECTION_CLOSE, the last frame
			return nil
		default:
			return malformed("a QUIC packet")
		}
	}
	m, complete := c.message()
	if !complete {
		return nil
	}
	h, ok := parseClientHello(m)
	if !ok {
		return malformed("a QUIC ClientHello")
	}
	if err := d.i.helloNames(h); err != nil {
		return err
	}
	c.allowed, c.crypto, c.have = true, nil, nil
	return nil
}

func skipAck(s *cryptobyte.String, ecn bool) bool {
	var largest, delay, ranges, n uint64
	if !readVarint(s, &largest) || !readVarint(s, &delay) || !readVarint(s, &ranges) || ranges > 1024 {
		return false
	}
	numbers := 1 + 2*int(ranges)
	if ecn {
		numbers += 3
	}
	for range numbers {
		if !readVarint(s, &n) {
			return false
		}
	}
	return true
}

func (c *quicConn) put(offset int, data []byte) {
	if end := offset + len(data); end > len(c.crypto) {
		c.crypto = append(c.crypto, make([]byte, end-len(c.crypto))...)
		c.have = append(c.have, make([]bool, end-len(c.have))...)
	}
	for n, b := range data {
		if !c.have[offset+n] { // as in servers, the first copy counts
			c.crypto[offset+n], c.have[offset+n] = b, true
		}
	}
}

// message returns the first handshake message if it is complete.
func (c *quicConn) message() ([]byte, bool) {
	have := slices.Index(c.have, false)
	if have < 0 {
		have = len(c.have)
	}
	if have < 4 {
		return nil, false
	}
	length := 4 + int(c.crypto[1])<<16 + int(c.crypto[2])<<8 + int(c.crypto[3])
	return c.crypto[:min(length, have)], have >= length
}

// newQUICKeys derives the keys of a client's Initial packets (RFC 9001, section 5.2).
func newQUICKeys(v *quicVersion, dcid string) (k quicKeys, err error) {
	client, err := clientSecret(v, dcid)
	if err != nil {
		return k, err
	}
	key, err := expandLabel(client, v.key, 16)
	if err != nil {
		return k, err
	}
	if k.iv, err = expandLabel(client, v.iv, 12); err != nil {
		return k, err
	}
	hp, err := expandLabel(client, v.hp, 16)
	if err != nil {
		return k, err
	}
	block, err := aes.NewCipher(key)
	if err != nil {
		return k, err
	}
	if k.aead, err = cipher.NewGCM(block); err != nil {
		return k, err
	}
	k.hp, err = aes.NewCipher(hp)
	return k, err
}

func clientSecret(v *quicVersion, dcid string) ([]byte, error) {
	secret, err := hkdf.Extract(sha256.New, []byte(dcid), []byte(v.salt))
	if err != nil {
		return nil, err
	}
	return expandLabel(secret, "client in", sha256.Size)
}

// expandLabel is HKDF-Expand-Label of RFC 8446 with an empty context.
func expandLabel(secret []byte, label string, length int) ([]byte, error) {
	info := append([]byte{byte(length >> 8), byte(length), byte(6 + len(label))}, "tls13 "+label+"\x00"...)
	return hkdf.Expand(sha256.New, secret, string(info), length)
}

// open decrypts the frames of an Initial packet (RFC 9001, sections 5.3 and 5.4). It returns false if the keys
// are wrong.
func (k quicKeys) open(pkt longPacket) ([]byte, bool) {
	const sample = 16
	if len(pkt.all) < pkt.number+4+sample {
		return nil, false
	}
	var mask [16]byte
	k.hp.Encrypt(mask[:], pkt.all[pkt.number+4:pkt.number+4+sample])
	head := slices.Clone(pkt.all[:pkt.number+4])
	head[0] ^= mask[0] & 0x0f
	size := int(head[0]&3) + 1
	head = head[:pkt.number+size]
	nonce := slices.Clone(k.iv)
	for n := range size {
		head[pkt.number+n] ^= mask[1+n]
		nonce[len(nonce)-size+n] ^= head[pkt.number+n]
	}
	frames, err := k.aead.Open(nil, nonce, pkt.all[pkt.number+size:], head)
	return frames, err == nil
}
