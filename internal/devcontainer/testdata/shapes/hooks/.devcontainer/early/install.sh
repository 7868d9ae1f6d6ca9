#!/bin/sh
set -e
echo "installing early"
