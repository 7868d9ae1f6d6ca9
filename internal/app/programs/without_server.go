//go:build !keeper || !clientonly

package programs

var packedServer []byte
